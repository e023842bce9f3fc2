"""Which parameters a device runs with: search, trials in a child process, and the store."""
