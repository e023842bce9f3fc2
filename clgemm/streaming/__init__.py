"""Products whose operands are copied to a device, block by block, while it computes.

`runner` is what the engine sees; `schedule` chooses how a product is divided into blocks, in
numbers alone; `stream` runs a schedule for one call; `copies` copies its blocks, through `staging`
memory, by `copy_threads`.
"""
