"""Everything that talks to OpenCL.

`platforms` and `devices` find devices, `processor` names the CPU's, `choice` chooses among them;
`device` is one in use, and `registry` keeps those.  `programs` builds kernels, `binaries` and
`private_files` keep them on disk; `kernel_runner` launches a plan of them, for which the
`worker_threads` of a CPU's runtime make room.  `queues`, `scratch`, `memory` and `host_memory` are
the memory that they work on, given back when `idle`.  `events` are what waits for Arrays,
`interrupt` is how to wait, `parts` how several threads do one call, `reentry` what becomes of calls
from within calls, `forks` of a forked child, `ending` of threads when a program ends;
`opencl_errors` tells what errors mean; `runner` is what everything that computes calls has in
common; `opencl` is the only place that imports pyopencl.  `machine_code` places some where nothing
else can be, `mappings` tells what lies where in memory.
"""
