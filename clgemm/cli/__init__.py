"""The command line: one file a command, `main` with the parser, `values` with what they take."""
