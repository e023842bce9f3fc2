"""NumPy's products by name, for NumPy's arrays and for pyopencl Arrays.

`products` has dot, inner, vdot, outer, tensordot and vecdot, `chains` multi_dot, `sums` einsum and
`axes` what only permutes axes.  What an einsum asks for is read by `subscripts` and becomes a plan
of products of two by `plans`.  All of them multiply by `clgemm.matmul`; `device_operations` has
what pyopencl Arrays need beside it, and `numpys` NumPy's own functions.
"""
