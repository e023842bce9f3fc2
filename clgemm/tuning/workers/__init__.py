"""Child processes that try candidates, so that what one does to its process costs it alone.

`pool` has a few of them, `worker` is the parent's end of one, `main` the child's, `process` how
they are started.
"""
