"""Stacks of small matrices, several of them in a work-group."""
