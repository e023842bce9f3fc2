"""The command line: one file a command, `main` with the parser, `values` with what they take.

`tune`, `cache` and `run` are commands of their own; the short ones are in `main`.  `picture` draws
the account of `run`.
"""
