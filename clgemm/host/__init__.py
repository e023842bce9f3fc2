"""The host's own BLAS: SciPy's and NumPy's functions, found before anybody replaces them.

`blas` computes with them, `scipy_blas` imports them when they are first needed, and `identity`
tells who they are.  `openblas` asks the libraries behind them, `spinning` stops their idle
threads, which `parking` has sleep for a time, and `threads` says how many cores a CPU device may
use beside them.
"""
