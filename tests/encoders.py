"""Tiny pretrained encoders with their tokenizers, as folders, for tests of models that read with them."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoModel, PreTrainedConfig, PreTrainedTokenizerFast, set_seed

from longspan.models.window_encoder import WindowEncoder

WORDS = tuple("the quick brown fox jumps over a lazy dog and barks at good bad films with joy or dread".split())  # noqa: SIM905
SPECIAL = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]"}


def make_encoder(folder: Path, config: PreTrainedConfig, *, special: bool = True, pad_id: int = 0) -> Path:
    """Write a random encoder of that configuration, whose tokens are `WORDS` and [CLS] and [SEP] around them."""
    names = [*SPECIAL.values()]
    # RoBERTa's padding is not the first token.
    names.insert(pad_id, names.pop(0))
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate([*names, *WORDS])}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    if special:
        ids = [(token, backend.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
        backend.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", "[CLS] $A [SEP] $B [SEP]", ids)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, **{f"{name}_token": token for name, token in SPECIAL.items()}
    )
    set_seed(0)
    model = AutoModel.from_config(config)
    with torch.no_grad():
        for weight in model.parameters():
            # So large that neighbours matter to what is said of a token; norms stay as they are.
            if weight.ndim > 1:
                weight.normal_(0, 0.3)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def forbid_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail where an encoder reads documents, as after what it says was kept; one token tries whether it can."""
    original = WindowEncoder.forward

    def forward(self: WindowEncoder, ids: torch.Tensor, *rest: Any) -> torch.Tensor:
        assert ids.numel() == 1, "the encoder reads documents"
        return original(self, ids, *rest)

    monkeypatch.setattr(WindowEncoder, "forward", forward)
