"""Run folders of small language models that were never trained, for tests of what is done with trained ones."""

from pathlib import Path
from typing import Any

import torch

from longspan import LongspanForCausalLM, tasks
from longspan.data.text.tokenization import build_tokenizer
from longspan.recipes import TRAINING_DEFAULTS
from longspan.tasks.base.task import Recipe
from longspan.tasks.language_modelling.options import LanguageModellingData, TrainingOptions


def make_run(
    folder: Path,
    text: str,
    mixer: str = "additive",
    tokens: str = "characters",
    seed: int = 0,
    carry_states: bool = True,
    **model: Any,
) -> Path:
    """Write a run of a random model whose tokens are those of `text` and whose data are text.txt beside it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    path = folder.parent / "text.txt"
    path.write_text(text, encoding="utf-8")
    data = LanguageModellingData(
        path=str(path), tokens=tokens, vocab_size=300, validation_fraction=0.2, test_fraction=0.3
    )
    settings: dict[str, Any] = {"dim": 16, "depth": 1, "heads": 2, "mixers": [mixer], "causal": True, **model}
    recipe = Recipe(
        folder.name,
        tasks.load("language_modelling"),
        data,
        settings,
        {**TRAINING_DEFAULTS, "per_device_eval_batch_size": 2},
        TrainingOptions(segment_length=8, carry_states=carry_states),
    )
    tokenizer = build_tokenizer(data, [text], end=True)
    torch.manual_seed(seed)
    config = LongspanForCausalLM.configured(
        vocab_size=len(tokenizer),
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        # So large that what comes before matters to what follows.
        initializer_range=0.5,
        **settings,
    )
    LongspanForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "recipe.toml").write_text(recipe.to_toml(), encoding="utf-8")
    return folder
