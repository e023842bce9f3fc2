"""Which parameters a device runs with.

`tuner` answers, from memory, from the `store`, or by a `search` whose candidates are verified and
measured (`measure`) in child processes (`workers`); `verification` looks at what comes from a file
before it is used; `cost_model` predicts which of a few configurations is the fastest for a shape.
`results` is what a search is asked for and finds, `outcome` what is said of one candidate, and
`shapes` are those that candidates are measured with.
"""
