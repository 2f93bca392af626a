"""reformer: position_ids are refused unless the length is a multiple of the chunk length.

`ReformerModel._pad_to_mult_of_chunk_length` counts from the length to the chunk length, which is smaller.
"""

import torch
from transformers import ReformerConfig, ReformerForMaskedLM

config = ReformerConfig(
    attn_layers=["local"], axial_pos_embds=False, max_position_embeddings=64, local_attn_chunk_length=8
)
model, ids = ReformerForMaskedLM(config).eval(), torch.randint(3, 40, (1, 12))
try:
    model(ids, position_ids=torch.arange(12).unsqueeze(0))
except RuntimeError as error:
    print(f"RuntimeError: {error}")
