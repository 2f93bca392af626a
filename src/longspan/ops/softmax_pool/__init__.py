"""Softmax-weighted means over all positions as an operator for a GPU: `operators` has it, `triton` its kernels.

`ops.pooling.softmax_pool` has the plain operations, which every other device runs.
"""
