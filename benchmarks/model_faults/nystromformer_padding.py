"""nystromformer: padding flows through the convolution over values into real tokens.

`NystromformerSelfAttention.forward` applies `self.conv` to values that are not masked. With fewer landmarks than
positions, padding is in their means, too.
"""

import torch
from transformers import NystromformerConfig, NystromformerForMaskedLM

torch.manual_seed(0)
sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 40}
model = NystromformerForMaskedLM(NystromformerConfig(**sizes, initializer_range=0.2)).eval()
ids, mask = torch.randint(3, 40, (1, 12)), torch.tensor([[1] * 8 + [0] * 4])
found, expected = model(ids, attention_mask=mask).logits[:, :8], model(ids[:, :8]).logits
print(f"deviation {(found - expected).abs().max() / expected.abs().max():.1e}")
