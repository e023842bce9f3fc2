"""The same from halves by `mma.sync`, for compute capability 8.0 and newer."""
