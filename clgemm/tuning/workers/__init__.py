"""Child processes that try candidates, so that what one does to its process costs it alone.

`main` is the program that they run, `pool` what the searching process has of them.
"""
