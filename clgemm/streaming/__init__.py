"""Products whose operands are copied to a device and back.

`runner` is what the engine sees.  `direct` has the driver copy small operands whole, and parts of
them by other threads, `beside` it.  Larger ones are copied block by block while the device
computes: `schedule` chooses how a product is divided, in numbers alone; `stream` runs a schedule
for one call, a `request`; `copies` copies its blocks, through `staging` memory, by `copy_threads`.
"""
