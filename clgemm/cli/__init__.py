"""The command line: one file a command, `main` with the parser, `values` with what they take.

The commands are `info`, `demo`, `explain`, `tune`, `cache` and `run`, the account of which
`picture` draws.
"""
