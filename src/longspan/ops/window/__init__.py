"""Softmax attention in which each query sees only keys near it, or only chosen blocks of keys.

Queries are cut into blocks, and each block attends to one window of keys by two small matrix products. Time and memory
thus grow with the length, not with its square. `sliding` and `chosen` say which keys a block sees; `engines` has the
three ways to compute it.
"""

from longspan.ops.window.engines import block_attention, block_attention_naive
from longspan.ops.window.sliding import Shared, window_attention, window_attention_naive

__all__ = ["Shared", "block_attention", "block_attention_naive", "window_attention", "window_attention_naive"]
