"""fp64 on NVIDIA's fp64 tensor cores."""
