"""Integers by 8-bit digits, and float16, on the tensor cores of Hopper: see `family`."""
