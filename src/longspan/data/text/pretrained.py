"""Tokenizers that others have made: of the Hub, of a folder, or of a run."""

from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerBase
from transformers.tokenization_utils_base import VERY_LARGE_INTEGER

from longspan.data.config import TRAINED_TOKENS
from longspan.data.sources.files.opening import expand, missing
from longspan.data.text.tokenizer_training import END, MASK, PAD
from longspan.errors import UserError, suggestion


def pretrained_tokenizer(name: str, *, end: bool, mask: bool) -> PreTrainedTokenizerBase:
    """Return the tokenizer of this name, or in this folder, with the special tokens that are asked for.

    Raises:
        UserError: No tokenizer of that name.
    """
    folder = expand(name)
    if name.startswith((".", "/", "~")) and not folder.exists():
        raise UserError(f"data.tokens: {missing(folder)}")
    # Special tokens spelled out in a document are ordinary text.
    options = {"split_special_tokens": True} if end or mask else {}
    try:
        tokenizer = _load(str(folder) if folder.exists() else name, **options)
    except Exception as error:
        # Unexpected files raise anything in transformers, and plain `Exception` in tokenizers.
        hint = suggestion(name, TRAINED_TOKENS)
        hint = hint if hint.startswith("did") else "check the name, or the folder for its tokenizer files."
        raise UserError(
            f"data.tokens must be {', '.join(TRAINED_TOKENS)} or a pretrained tokenizer, got {name!r}, which could not "
            f"be loaded as one ({_problem(error)}); {hint}"
        ) from None
    return _with_special(tokenizer, end, mask)


def tokenizer_of_run(folder: str, *, end: bool, mask: bool) -> PreTrainedTokenizerBase:
    """Return the tokenizer of a run, with the special tokens that are asked for after all of its own.

    Raises:
        UserError: The folder has none.
    """
    path = Path(folder).expanduser()
    if not (path / "tokenizer_config.json").is_file():
        raise UserError(
            f"data.tokenizer_from: expected the folder of a finished run, got {folder!r}, which has no tokenizer; end "
            "its training with --finish, or name another."
        )
    try:
        tokenizer = _load(str(path), local_files_only=True, split_special_tokens=True)
    except Exception as error:
        raise UserError(
            f"data.tokenizer_from: expected a tokenizer in {folder!r}, got files that cannot be loaded as one "
            f"({_problem(error)}); restore them."
        ) from None
    return _with_special(tokenizer, end, mask)


def _load(source: str, **options: Any) -> PreTrainedTokenizerBase:
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(source, trust_remote_code=False, **options)
    return tokenizer


def _with_special(tokenizer: PreTrainedTokenizerBase, end: bool, mask: bool) -> PreTrainedTokenizerBase:
    if tokenizer.pad_token is None:
        tokenizer.add_special_tokens({"pad_token": PAD})
    if end and tokenizer.eos_token is None:
        tokenizer.add_special_tokens({"eos_token": END} | ({} if tokenizer.bos_token else {"bos_token": END}))
    if mask and tokenizer.mask_token is None:
        tokenizer.add_special_tokens({"mask_token": MASK})
    # The limit is that of the model it was trained for.
    tokenizer.model_max_length = VERY_LARGE_INTEGER
    return tokenizer


def _problem(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".:")
