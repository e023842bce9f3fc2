"""Local-memory tiles and register blocking, in portable OpenCL C: for every GPU."""
