"""funnel: padding is in the means of pooled positions.

`FunnelAttentionStructure.pool_tensor` takes the mean of two positions, real or not.
"""

import torch
from transformers import FunnelConfig, FunnelForMaskedLM

torch.manual_seed(0)
sizes = {"d_model": 32, "d_inner": 48, "n_head": 4, "d_head": 8, "block_sizes": [1, 1], "vocab_size": 40}
model = FunnelForMaskedLM(FunnelConfig(**sizes, initializer_range=0.2)).eval()
ids, mask = torch.randint(3, 40, (1, 12)), torch.tensor([[1] * 8 + [0] * 4])
found, expected = model(ids, attention_mask=mask).logits[:, :8], model(ids[:, :8]).logits
print(f"deviation {(found - expected).abs().max() / expected.abs().max():.1e}")
