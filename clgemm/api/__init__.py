"""The faces: what callers may pass, and what they get.

In the order of a call: `matmul` (numpy.matmul's rules) and `clgemm.blas` (SciPy's routines, with
`arguments` for what may be passed to them); `shortcut`, what is compiled, `small` and `repeated`,
the short ways of small products and of those like an earlier one; `stacks`, N-d operands as few
products; `device_arrays`, the same faces for pyopencl Arrays, with `array_operands` for what may be
passed, `array_decisions`, what those do, `repeated_arrays`, the short way of the same Arrays, and
`nested_arrays`, for calls of signal handlers. `integers` multiplies types that no BLAS has.
`ufunc_result` and `drop_in` make results and functions look like NumPy's and SciPy's; `explain`
tells what a call would do, `warm_up` does beforehand what a first one waits for. Everything is
handed on as a `Call`.
"""
