"""yoso: padding is not masked, but multiplied by a large number.

`YosoSelfAttention.forward` computes `1 + attention_mask / 10000`, which is 0 for a mask of -10000. The mask of padding
is the smallest number of the type.
"""

import torch
from transformers import YosoConfig, YosoForMaskedLM

torch.manual_seed(0)
sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 40}
model = YosoForMaskedLM(YosoConfig(**sizes, initializer_range=0.2)).eval()
ids, mask = torch.randint(3, 40, (1, 12)), torch.tensor([[1] * 8 + [0] * 4])
found, expected = model(ids, attention_mask=mask).logits[:, :8], model(ids[:, :8]).logits
print(f"deviation {(found - expected).abs().max() / expected.abs().max():.1e}")
