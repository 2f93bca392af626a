"""longt5: in float16, gradients are NaN where a row does not fill its last block.

The local mask holds -1e10, which is -inf in float16. A block of padding sees nothing else.
"""

import torch
from transformers import LongT5Config, LongT5ForConditionalGeneration

sizes = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_heads": 4, "num_layers": 1, "vocab_size": 40, "local_radius": 7}
model = LongT5ForConditionalGeneration(LongT5Config(**sizes, decoder_start_token_id=0)).eval().half()
ids = torch.randint(3, 40, (1, 21))
model(input_ids=ids, labels=ids).loss.backward()
print(f"finite gradients: {bool(model.shared.weight.grad.isfinite().all())}")
