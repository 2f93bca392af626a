"""Tokens of texts: bytes, characters, words or byte-level BPE, learned from the training split, or pretrained."""

import hashlib
import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import datasets
import numpy as np
import tokenizers
from tokenizers import Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.tokenization_utils_base import VERY_LARGE_INTEGER

from longspan.data.config import BYTE_PAIRS, TRAINED_TOKENS, DataConfig
from longspan.data.sources.files.full_disk import needing_room
from longspan.data.sources.files.opening import expand, missing
from longspan.data.text.threads import backend_ids, no_rust_threads
from longspan.data.text.tokenizer_training import END, MASK, PAD, UNKNOWN, learn
from longspan.data.text.truncation import special_ids, truncated
from longspan.data.text.word_lookup import WordLookup, lookup_for
from longspan.errors import UserError, first_line, suggestion
from longspan.machine.limits import cores
from longspan.results.outputs import replacing

TOKENS_VERSION = 2
"""Increase this when the same documents give different tokens, so that outdated caches are not used."""

_MANY_CORES = 5
"""Number of cores from which encoding whole texts in threads is faster than looking up words in one."""

_READ_CHARACTERS = 16
"""Characters per token of `max_length` from which BPE is learned: several times as many as are read."""

_LOOKUPS: WeakKeyDictionary[PreTrainedTokenizerBase, WordLookup] = WeakKeyDictionary()
"""What each tokenizer's words became, as long as it is in use."""


def build_tokenizer(
    config: DataConfig,
    texts: Iterable[str],
    *,
    cache_key: str | None = None,
    end: bool = False,
    mask: bool = False,
    splitting: str = "",
) -> PreTrainedTokenizerBase:
    """Return the tokenizer that `config.tokens` names, learned from `texts` if necessary.

    "bytes" has one token per byte of UTF-8, "characters" one per Unicode character of `texts`; "bpe" is byte-level BPE
    (Sennrich et al. 2016; Radford et al. 2019), learned from the part of each document that `config.max_length` leaves
    and a multiple of it. These decode exactly, except for unknown characters and what NFC changes. Words are split by
    "words" at white space and around each punctuation mark. The kind "whitespace" splits at white space alone, with
    line breaks as tokens. Both keep the most frequent words. "pieces" is BPE within words, each of which begins with a
    token of its own, as `longspan.data.text.words` describes. In all of them padding is id 0 and the unknown token id
    1, and "<pad>" in a document becomes ordinary tokens. All but "bytes" read texts in NFC, Unicode's composed form, so
    that "é" is the same however it was typed. Offsets refer to the original text. Anything else is loaded by
    `transformers.AutoTokenizer`, with a padding token added if it has none; so is that of a run, with
    `config.tokenizer_from`.

    Args:
        config: The kind of tokens, and how many.
        texts: Training documents or pieces of them, read once, one at a time, and only if tokens are learned.
        cache_key: An identifier of `texts`, such as a data set's fingerprint: with it, the learned tokenizer is cached
            next to data sets, and `texts` are not read again.
        end: Whether to have a token for the end of a document, "<|endoftext|>", as `eos_token` and `bos_token` (id 2;
            a pretrained tokenizer with an end token keeps its own).
        mask: Whether to have a token that stands for one to be predicted, "<mask>", as `mask_token` (the last special
            one; a pretrained tokenizer keeps its own).
        splitting: The regular expression by which it splits texts into words, as for
            `longspan.data.text.tokenizer_training.learn`; `texts` are then words. A pretrained tokenizer has its own.

    Raises:
        UserError: There is no such pretrained tokenizer, or `vocab_size` leaves no room next to the special tokens.
    """
    if config.tokenizer_from:
        return tokenizer_of_run(config.tokenizer_from, end=end, mask=mask)
    if config.tokens not in TRAINED_TOKENS:
        return pretrained_tokenizer(config.tokens, end=end, mask=mask)
    added = {**({"bos_token": END, "eos_token": END} if end else {}), **({"mask_token": MASK} if mask else {})}
    special = [PAD, UNKNOWN, *dict.fromkeys(added.values())]
    smallest = len(special) + (256 if config.tokens in BYTE_PAIRS else 1)
    if config.vocab_size < smallest:
        raise UserError(
            f"data.vocab_size must be at least {smallest} for tokens={config.tokens!r}, got "
            f"{config.vocab_size}; raise it."
        )
    read = _READ_CHARACTERS * config.max_length if config.tokens in BYTE_PAIRS and not splitting else 0
    file = _cache_file(config, cache_key, special, read, splitting) if cache_key and config.tokens != "bytes" else None
    if file is not None and file.exists():
        backend = Tokenizer.from_file(str(file))
    else:
        with no_rust_threads():
            backend = learn(config, _ends(texts, read, config.keep) if read else texts, special, splitting)
        if file is not None:
            with needing_room():
                file.parent.mkdir(parents=True, exist_ok=True)
                with replacing(file) as fresh:
                    backend.save(str(fresh))
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=PAD,
        unk_token=UNKNOWN,
        **added,
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
        split_special_tokens=True,
    )


def _ends(texts: Iterable[str], characters: int, keep: str) -> Iterator[str]:
    """Yield at most `characters` of each text, from the end that is read (`keep`)."""
    return (text[:characters] if keep == "first" else text[-characters:] for text in texts)


def _cache_file(config: DataConfig, cache_key: str, special: Sequence[str], read: int, splitting: str) -> Path:
    facts = [TOKENS_VERSION, tokenizers.__version__, config.tokens, config.vocab_size, config.lowercase, cache_key]
    facts += special[2:]
    facts += [read, config.keep] if read else []
    facts += [splitting] if splitting else []
    name = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]
    return Path(datasets.config.HF_DATASETS_CACHE, "longspan_tokenizers", f"{name}.json")


def encode(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], config: DataConfig, *, pairs: Sequence[str] | None = None
) -> list[list[int]]:
    """Return the token ids of each text, special tokens included, truncated to `config.max_length`.

    Args:
        tokenizer: The tokenizer.
        texts: The texts.
        config: Number of tokens to keep, and their choice.
        pairs: The second text of each pair, if texts are pairs. The longer of the two is truncated first.

    Raises:
        UserError: `config.max_length` leaves no room next to the special tokens.
    """
    return [ids for ids, _ in encode_counted(tokenizer, texts, config, pairs=pairs)]


def encode_counted(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], config: DataConfig, *, pairs: Sequence[str] | None = None
) -> list[tuple[list[int], int]]:
    """Return the token ids of each text or pair, as `encode` does, and how many tokens were left out."""
    parts = [texts] if pairs is None else [texts, pairs]
    special = special_tokens(tokenizer, len(parts))
    contents = zip(*(token_ids(tokenizer, part) for part in parts), strict=True)
    found = (truncated(each, special, config.max_length, config.keep) for each in contents)
    return [(ids.tolist(), lost) for ids, lost in found]


def ordinary_tokens(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Return all tokens in the order of their ids, as the vocabulary has them; special ones as empty texts."""
    special = set(tokenizer.all_special_ids)
    return [
        "" if number in special else token or ""
        for number, token in enumerate(tokenizer.convert_ids_to_tokens(range(len(tokenizer))))
    ]


def token_ids(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[np.ndarray]:
    """Return all ids of each text, without special tokens."""
    if not tokenizer.is_fast:
        return [_ids(tokenizer.encode(text, add_special_tokens=False, verbose=False)) for text in texts]
    backend = backend_of(tokenizer)
    lookup = kept_lookup(tokenizer, len(texts))
    if lookup is not None:
        return lookup(texts, lowers(backend), lambda words: backend_ids(backend, words))
    return list(map(_ids, backend_ids(backend, texts)))


def kept_lookup(tokenizer: PreTrainedTokenizerBase, texts: int) -> WordLookup | None:
    """Cache of a fast tokenizer's words, for so many texts; None where it may not be used or is slower."""
    # With many cores, the Rust library's threads overtake looking up words, which takes one.
    fresh = lookup_for(backend_of(tokenizer)) if cores() < _MANY_CORES or texts == 1 else None
    return None if fresh is None else _LOOKUPS.setdefault(tokenizer, fresh)


def lowers(backend: Tokenizer) -> bool:
    """Return whether a backend encodes texts in lower case."""
    return backend.normalizer is not None and str(backend.normalizer.normalize_str("A")) == "a"


def backend_of(tokenizer: PreTrainedTokenizerBase) -> Tokenizer:
    """Return the Rust tokenizer, without the truncation and padding set by its file or an earlier call."""
    backend = tokenizer.backend_tokenizer
    # Only where needed: a change while another thread encodes is an error.
    if backend.truncation is not None:
        backend.no_truncation()
    if backend.padding is not None:
        backend.no_padding()
    if backend.encode_special_tokens != tokenizer.split_special_tokens:
        backend.encode_special_tokens = tokenizer.split_special_tokens
    return backend


def _ids(values: Sequence[int]) -> np.ndarray:
    return np.array(values, dtype=np.int32)


def _encoding(tokenizer: PreTrainedTokenizerBase) -> Callable[..., list[int]]:
    """Function that encodes a text, or two, as ids, with or without special tokens."""
    if not tokenizer.is_fast:
        return tokenizer.encode
    backend = backend_of(tokenizer)

    def encode(text: str, pair: str | None = None, *, add_special_tokens: bool) -> list[int]:
        return list(backend.encode(text, pair, add_special_tokens=add_special_tokens).ids)

    return encode


def special_tokens(tokenizer: PreTrainedTokenizerBase, texts: int) -> list[np.ndarray]:
    """Return the special ids that the tokenizer adds before one text or two, between them and after the last."""
    # The method of transformers takes longer than to encode a short text.
    return special_ids(_encoding(tokenizer), texts, tokenizer.name_or_path)


def token_facts(tokenizer: PreTrainedTokenizerBase) -> list[Any]:
    """Return all that tokens depend on besides texts, as JSON, for `mapped_once`."""
    return [TOKENS_VERSION, tokenizer_hash(tokenizer)]


def tokenizer_hash(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return a hash of everything that the tokens depend on."""
    digest = hashlib.sha256()
    if tokenizer.is_fast:
        digest.update(f"{tokenizer.split_special_tokens} {backend_of(tokenizer).to_str()}".encode())
    else:
        with tempfile.TemporaryDirectory() as folder:
            tokenizer.save_pretrained(folder)
            for file in sorted(Path(folder).iterdir()):
                digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()


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
            f"be loaded as one ({first_line(error)}); {hint}"
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
            f"({first_line(error)}); restore them."
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
