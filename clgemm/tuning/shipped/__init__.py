"""Tuned parameters of known devices, in the schema of the user's own files."""
