"""NumPy's products by name, for NumPy's arrays and for pyopencl Arrays.

`products` has dot, inner, vdot, outer, tensordot and vecdot, `chains` multi_dot, `sums` einsum and
`axes` what only permutes axes.  `pairs` finds the matrices in two operands and their axes; what an
einsum asks for is read by `subscripts` and becomes products of two by `plans`.  All multiply by
`clgemm.matmul`; `device_operations` has what pyopencl Arrays need beside it, and `numpys` NumPy's
own functions.
"""
