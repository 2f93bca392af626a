"""recurrent_gemma: padding on the left flows through the short convolution into the first real tokens.

`RecurrentGemmaRecurrentBlock.forward` takes attention_mask and does not use it.
"""

import torch
from transformers import RecurrentGemmaConfig, RecurrentGemmaForCausalLM

torch.manual_seed(0)
sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "lru_width": 32, "vocab_size": 40}
model = RecurrentGemmaForCausalLM(RecurrentGemmaConfig(**sizes, num_hidden_layers=3, head_dim=8)).eval()
torch.nn.init.normal_(model.model.embed_tokens.weight)
ids, mask = torch.randint(3, 40, (1, 12)), torch.tensor([[0] * 4 + [1] * 8])
positions = (mask.cumsum(1) - 1).clamp_min(0)
found = model(ids, attention_mask=mask, position_ids=positions, use_cache=False).logits[:, 4:]
expected = model(ids[:, 4:], use_cache=False).logits
print(f"deviation {(found - expected).abs().max() / expected.abs().max():.1e}")
