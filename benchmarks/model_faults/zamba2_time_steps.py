"""zamba2, nemotron_h: cached steps do not clamp time steps to `time_step_min`, as the whole pass does.

`Zamba2MambaMixer.forward` gives dt_limit to `mamba2_chunk_scan` and not to `mamba2_selective_state_update`.
"""

import torch
from transformers import NemotronHConfig, NemotronHForCausalLM

torch.manual_seed(0)
sizes = {
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "mamba_num_heads": 8,
    "mamba_head_dim": 8,
    "n_groups": 2,
}
config = NemotronHConfig(
    **sizes,
    layers_block_type=["linear_attention", "full_attention"],
    head_dim=8,
    vocab_size=40,
    time_step_min=0.1,
    initializer_range=0.3,
)
model, ids = NemotronHForCausalLM(config).eval(), torch.randint(3, 40, (1, 12))
for layer in model.model.layers[:1]:
    # Time steps below the minimum.
    torch.nn.init.constant_(layer.mixer.dt_bias, -6.0)
cache = model(ids[:, :-1], use_cache=True).past_key_values
found, expected = model(ids[:, -1:], past_key_values=cache).logits[:, -1], model(ids).logits[:, -1]
print(f"deviation {(found - expected).abs().max() / expected.abs().max():.1e}")
