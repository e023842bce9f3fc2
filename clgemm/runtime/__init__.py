"""Everything that talks to OpenCL.

`devices` finds devices and `choice` chooses among them, `device` is one in use and `registry` keeps
those; `programs` builds kernels and `kernel_runner` launches a plan of them; `queues`, `scratch`,
`memory` and `host_memory` are the memory that they work on; `interrupt` is how to wait.  `runner`
says what all that computes calls has in common; `opencl` is the only place that imports pyopencl.
"""
