"""Products whose operands are copied to a device, block by block, while it computes.

`runner` is what the engine sees; `planning` chooses how a product is cut, and `schedule` says what
follows from a cut, both in numbers alone; `stream` runs a schedule; `copies` and `transfers` move
blocks, through `staging` memory, by `copy_threads`; `pages` are taken for results meanwhile.
"""
