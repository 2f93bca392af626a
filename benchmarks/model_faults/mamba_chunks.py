"""mamba, falcon_mamba, jamba, zamba: several tokens after a cache start from a state of zeros.

`MambaMixer.forward` gives `mamba_selective_scan` no initial state, so only the convolution remembers what came before.
"""

import torch
from transformers import FalconMambaConfig, FalconMambaForCausalLM

torch.manual_seed(0)
model = FalconMambaForCausalLM(
    FalconMambaConfig(hidden_size=32, state_size=8, num_hidden_layers=2, vocab_size=40)
).eval()
ids = torch.randint(3, 40, (1, 12))
cache = model(ids[:, :6], use_cache=True).cache_params
found, expected = model(ids[:, 6:], cache_params=cache, use_cache=True).logits, model(ids).logits[:, 6:]
print(f"deviation {(found - expected).abs().max() / expected.abs().max():.1e}")
