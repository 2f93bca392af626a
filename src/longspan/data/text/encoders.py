"""Pretrained encoders by name: `described_by`, `settings` and `fill` read what `model.encoder` names.

Only a user who names an encoder has it read, from a folder or the Hugging Face Hub; a run folder holds all of it.
"""

import logging
from typing import Any

import torch
from transformers import AutoConfig, PreTrainedTokenizerBase
from transformers.utils import cached_file
from transformers.utils import logging as messages

from longspan.data.sources.files.opening import expand, missing
from longspan.data.text.tokenization import special_tokens
from longspan.errors import UserError, first_line
from longspan.models.window_encoder import WindowEncoder, described


def check_tokens(encoder: str, tokens: str) -> None:
    """Raise UserError unless `data.tokens` are those of the encoder, which reads no others."""
    if tokens != encoder:
        raise UserError(
            f"expected the tokens of the encoder {encoder!r}, got data.tokens={tokens!r}; leave data.tokens out."
        )


def described_by(name: str) -> dict[str, Any]:
    """Return the configuration of an encoder, as `longspan.models.window_encoder.described` does.

    Args:
        name: Its folder, or its name on the Hub.

    Raises:
        UserError: No encoder of that name, or one that cannot be used.
    """
    place = _place(name)
    try:
        config = AutoConfig.from_pretrained(place, trust_remote_code=False)
        adapter = cached_file(place, "adapter_config.json", _raise_exceptions_for_missing_entries=False)
    except UserError:
        raise
    # Unexpected files and names raise anything in transformers.
    except Exception as error:
        raise _unreadable(name, error) from error
    if adapter is not None:
        # It may name weights to download.
        raise UserError(
            f"expected a whole model as model.encoder, got adapters of PEFT in {name!r}; merge them into its weights "
            "(`merge_and_unload`) and save it."
        )
    if getattr(config, "quantization_config", None) is not None:
        raise UserError(
            f"expected an encoder with weights in float32, bfloat16 or float16, got {name!r}, which is quantised; use "
            "the model that it was made of."
        )
    try:
        return described(config)
    except UserError as error:
        raise UserError(f"model.encoder={name}: {error}") from None


def settings(name: str, tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """Settings of `LongspanConfig` for an encoder and its tokenizer, as JSON.

    Raises:
        UserError: There is no such encoder, or it is not the tokenizer's.
    """
    found = described_by(name)
    # Those that a task adds are none of a text.
    ordinary = set(tokenizer.get_vocab().values()) - set(tokenizer.all_special_ids)
    most = max(ordinary, default=0)
    if most >= found["vocab_size"]:
        raise UserError(
            f"expected a tokenizer of at most {found['vocab_size']} tokens, as the encoder {name!r} has, got a token "
            f"with the number {most}; restore its tokenizer files."
        )
    special = [ids.tolist() for ids in special_tokens(tokenizer, 1)]
    return {"encoder_config": found, "encoder_special_ids": special}


def fill(encoder: WindowEncoder, name: str) -> None:
    """Load the weights of a named encoder, from safetensors files alone.

    Raises:
        UserError: The weights are missing, or do not fit.
    """
    model_class, config = type(encoder.model), encoder.model.config
    level, bar = messages.get_verbosity(), messages.is_progress_bar_enabled()
    messages.set_verbosity(logging.ERROR)
    try:
        model, info = model_class.from_pretrained(
            _place(name),
            config=config,
            dtype=torch.float32,
            use_safetensors=True,
            output_loading_info=True,
            trust_remote_code=False,
            ignore_mismatched_sizes=True,
        )
    except Exception as error:
        raise _unreadable(name, error) from error
    finally:
        messages.set_verbosity(level)
        if bar:
            messages.enable_progress_bar()
    needed = dict(encoder.model.named_parameters())
    wrong = sorted({*info["missing_keys"], *(key for key, *_ in info["mismatched_keys"])} & needed.keys())
    if wrong:
        raise UserError(
            f"expected the weights of a {model_class.__name__} in {name!r}, got none of the right shape for {wrong[0]} "
            f"({len(wrong)} in all); use another encoder, or restore its files."
        )
    weights = {key: value for key, value in model.state_dict().items() if key in needed}
    encoder.model.load_state_dict(weights, strict=False)
    try:
        with torch.no_grad():
            encoder(torch.zeros(1, 1, dtype=torch.long))
    # For example, a model of many languages that needs to be told which one it reads.
    except Exception as error:
        raise _unreadable(name, error) from error


def _place(name: str) -> str:
    """Return the folder that a name means, or the name if it is one of the Hub."""
    folder = expand(name)
    # A folder next to others is not one of the Hub.
    local = name.startswith((".", "/", "~")) or name.count("/") > 1 or ("/" in name and folder.parent.is_dir())
    if local and not folder.exists():
        raise UserError(f"model.encoder: {missing(folder)}")
    return str(folder) if folder.exists() else name


def _unreadable(name: str, error: Exception) -> UserError:
    return UserError(
        f"expected the folder of a pretrained model with safetensors files or its name on the Hugging Face Hub as "
        f"model.encoder, got {name!r}, which could not be loaded ({first_line(error)}); check the name or the folder."
    )
