"""xlstm: in float16 and bfloat16, rows of more than a chunk, read without a cache, end with an error.

`mlstm_chunkwise_recurrent_fw_C` multiplies keys in float32 by values in the type of the model.
"""

import torch
from transformers import xLSTMConfig, xLSTMForCausalLM

config = xLSTMConfig(hidden_size=128, num_heads=4, num_hidden_layers=1, vocab_size=40, chunk_size=8)
model, ids = xLSTMForCausalLM(config).eval().bfloat16(), torch.randint(3, 40, (1, 21))
try:
    model(ids, use_cache=False)
except RuntimeError as error:
    print(f"RuntimeError: {error}")
