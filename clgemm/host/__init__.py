"""The host's own BLAS: SciPy's and NumPy's functions, found before anybody replaces them.

`blas` computes with them, `scipy_blas` imports them when they are first needed, and `identity`
asks the library what it is.
"""
