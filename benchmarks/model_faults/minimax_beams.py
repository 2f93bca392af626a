"""minimax: beam search reorders the keys and values, and leaves the states of linear attention where they were.

`MiniMaxCache` inherits `reorder_cache`, which does not know its `linear_cache`.
"""

import torch
from transformers import MiniMaxConfig, MiniMaxForCausalLM

torch.manual_seed(0)
sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
config = MiniMaxConfig(**sizes, num_hidden_layers=2, vocab_size=40, num_local_experts=2, initializer_range=0.2)
model, ids, order = MiniMaxForCausalLM(config).eval(), torch.randint(3, 40, (2, 12)), torch.tensor([1, 0])
cache = model(ids[:, :-1], use_cache=True).past_key_values
cache.reorder_cache(order)
found = model(ids[order, -1:], past_key_values=cache).logits[:, -1]
expected = model(ids[order]).logits[:, -1]
print(f"deviation {(found - expected).abs().max() / expected.abs().max():.1e}")
