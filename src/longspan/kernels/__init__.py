"""Native loops behind the ops: NumPy arrays in and out, no tensors. Loaded on first use, as Numba is slow to import."""
