"""Differential fuzzing of clgemm against the installed SciPy and NumPy: seeded and replayable.

    python -m tests.fuzz --cases 20000 --seed 1
    python -m tests.fuzz --replay 1:537

`operands` and `odd_arguments` make what a call is given, `gemm_calls`, `matmul_calls`,
`device_calls`, `integer_calls` and `other_calls` draw calls and make them on both sides, and
`interposed_calls` raw calls of the BLAS beneath NumPy and SciPy. `compare` says what has to agree,
`running` runs cases, `disturbing` what goes on beside them, and `command` reads the command line.
"""
