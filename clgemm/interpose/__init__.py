"""clgemm under other people's code: the gemm that compiled modules call, replaced in the process.

`hook` is what users call.  From a module to a product: `elf` reads which functions it imports,
`slots` finds and checks the places that hold their addresses, `entries` knows names, `stub` is the
machine code that these places point to, `callbacks` computes what it shows to Python: `arguments`
reads what is asked for, `decisions` tells what is shown and where it is computed, and `triangles`
writes what is a part of C.  `later` raises what was raised meanwhile, and `account` adds up.
`imports` looks at modules that are imported later.
"""
