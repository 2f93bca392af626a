"""The sums of keys and values of linear attention, and what queries read from them.

`plain` has them in plain operations, for every device; `triton` as kernels for a GPU, which `operators` makes operators
of PyTorch.
"""
