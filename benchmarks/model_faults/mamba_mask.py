"""mamba, falcon_mamba: a cached step with the mask of all tokens takes the mask of the first one for the new token.

`apply_mask_to_padding_states` multiplies (b, 1, d) by (b, t, 1), and the step then reads position 0. `generate` drops
the mask after the prompt.
"""

import torch
from transformers import MambaConfig, MambaForCausalLM

torch.manual_seed(0)
model = MambaForCausalLM(MambaConfig(hidden_size=32, state_size=8, num_hidden_layers=2, vocab_size=40)).eval()
ids, mask = torch.randint(3, 40, (1, 12)), torch.tensor([[0] * 4 + [1] * 8])
cache = model(ids[:, :-1], attention_mask=mask[:, :-1], use_cache=True).cache_params
found = model(ids[:, -1:], cache_params=cache, attention_mask=mask, use_cache=True).logits[:, -1]
expected = model(ids[:, 4:]).logits[:, -1]
print(f"deviation {(found - expected).abs().max() / expected.abs().max():.1e}")
