"""llama and all others with `eager_attention_forward`: in float64, padding on the left gives NaN at real tokens.

The mask holds the smallest number of float64, and softmax is computed in float32, where it is -inf. Rows of padding see
nothing else, become NaN, and the next layer multiplies NaN by 0.
"""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 40}
model = LlamaForCausalLM._from_config(LlamaConfig(**sizes), attn_implementation="eager").eval().double()
ids, mask = torch.randint(3, 40, (1, 12)), torch.tensor([[0] * 4 + [1] * 8])
print(f"finite at real tokens: {bool(model(ids, attention_mask=mask).logits[:, 4:].isfinite().all())}")
