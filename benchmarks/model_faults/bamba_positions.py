"""bamba: without position_ids, every cached step is at position 0.

`BambaModel.forward` counts from 0 and does not add the length of the cache. `generate` gives position_ids.
"""

import torch
from transformers import BambaConfig, BambaForCausalLM

torch.manual_seed(0)
sizes = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "mamba_n_heads": 8, "mamba_d_head": 8}
config = BambaConfig(**sizes, num_hidden_layers=2, attn_layer_indices=[1], vocab_size=40, initializer_range=0.2)
model, ids = BambaForCausalLM(config).eval(), torch.randint(3, 40, (1, 12))
cache = model(ids[:, :-1], use_cache=True).past_key_values
found, expected = model(ids[:, -1:], past_key_values=cache).logits[:, -1], model(ids).logits[:, -1]
print(f"deviation {(found - expected).abs().max() / expected.abs().max():.1e}")
