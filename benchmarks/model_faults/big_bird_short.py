"""big_bird: after a short row, all later rows are read with full attention.

`BigBirdModel.forward` calls `set_attention_type("original_full")` and never sets it back.
"""

import torch
from transformers import BigBirdConfig, BigBirdForMaskedLM

torch.manual_seed(0)
sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 40}
model = BigBirdForMaskedLM(BigBirdConfig(**sizes, block_size=2, num_random_blocks=1, initializer_range=0.2)).eval()
ids = torch.randint(3, 40, (1, 20))
expected, _, found = model(ids).logits, model(ids[:, :4]), model(ids).logits
print(f"deviation {(found - expected).abs().max() / expected.abs().max():.1e}")
