"""rwkv: a cached step with a batch mixes its rows, and returns b rows of b tokens.

`extract_key_value` adds a state of (b, d) to a token of (b, 1, d), which broadcasts to (b, b, d).
"""

import torch
from transformers import RwkvConfig, RwkvForCausalLM

torch.manual_seed(0)
model = RwkvForCausalLM(RwkvConfig(hidden_size=32, num_hidden_layers=2, vocab_size=40)).eval()
ids = torch.randint(3, 40, (3, 12))
state = model(ids[:, :-1], use_cache=True).state
found, expected = model(ids[:, -1:], state=state, use_cache=True).logits, model(ids).logits[:, -1:]
print(f"logits {tuple(found.shape)} instead of {tuple(expected.shape)}")
print(f"deviation {(found[:, -1:] - expected).abs().max() / expected.abs().max():.1e}")
