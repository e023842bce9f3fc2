"""Everything that talks to OpenCL: devices, sessions, programs."""
