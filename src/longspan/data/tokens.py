"""Documents to tokens: bytes, words, byte-level BPE learned from the training split, or a pretrained tokenizer."""

import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence, Sized
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import tokenizers
from datasets import Dataset, Features, List, Value
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.tokenization_utils_base import VERY_LARGE_INTEGER

from longspan.data.config import TRAINED_TOKENS, DataConfig
from longspan.data.files import missing
from longspan.errors import UserError, suggestion

PAD, UNKNOWN = "<pad>", "<unk>"
_TOKENS_VERSION = 1
"""Raise this when the same documents would give other tokens, so that what is in users' caches is not used."""

_PIECE = 20_000
"""Characters that a thread encodes at a time: enough to be busy, few enough that all threads have work."""

_SLOW_ROWS = 1000
"""Rows from which starting processes pays for tokenizers written in Python."""


def build_tokenizer(
    config: DataConfig, texts: Iterable[str], *, cache_key: str | None = None
) -> PreTrainedTokenizerBase:
    """Return the tokenizer that `config.tokens` names, learning it from `texts` if need be.

    "bytes" has one token per byte of UTF-8 and decodes exactly; "words" splits at white space and around each
    punctuation mark and keeps the most frequent words; "bpe" is byte-level BPE (Sennrich et al. 2016; Radford et al.
    2019). In these, padding is id 0 and the unknown token id 1, and a document that contains "<pad>" gets ordinary
    tokens for it. Anything else is loaded by `transformers.AutoTokenizer`, with a padding token added if it has none.

    Args:
        config: Which tokens.
        texts: Training documents, read once, one at a time, and only for "words" and "bpe".
        cache_key: What identifies `texts`, such as a data set's fingerprint: then the tokenizer learned is kept in the
            cache of `datasets` and `texts` are not read again.

    Raises:
        UserError: No such pretrained tokenizer.
    """
    if config.tokens not in TRAINED_TOKENS:
        return _pretrained(config.tokens)
    file = _cache_file(config, cache_key) if cache_key and config.tokens != "bytes" else None
    if file is not None and file.exists():
        backend = Tokenizer.from_file(str(file))
    else:
        with _no_rust_threads():
            backend = _train(config, texts)
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=file.parent) as folder:
                backend.save(str(Path(folder, "tokenizer.json")))
                Path(folder, "tokenizer.json").replace(file)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=PAD,
        unk_token=UNKNOWN,
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
        split_special_tokens=True,
    )


def _cache_file(config: DataConfig, cache_key: str) -> Path:
    facts = [_TOKENS_VERSION, tokenizers.__version__, config.tokens, config.vocab_size, config.lowercase, cache_key]
    name = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]
    return Path(datasets.config.HF_DATASETS_CACHE, "longspan_tokenizers", f"{name}.json")


def _train(config: DataConfig, texts: Iterable[str]) -> Tokenizer:
    options: dict[str, Any] = {
        "special_tokens": [PAD, UNKNOWN],
        "vocab_size": config.vocab_size,
        "show_progress": not datasets.are_progress_bars_disabled(),
    }
    # Sorted, so that the ids of single bytes are the same everywhere.
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    if config.tokens == "words":
        tokenizer = Tokenizer(models.WordLevel(unk_token=UNKNOWN))
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        trainer: Any = trainers.WordLevelTrainer(**options)
    elif config.tokens == "bpe":
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(initial_alphabet=alphabet, **options)
    else:
        vocabulary = {token: number for number, token in enumerate([PAD, UNKNOWN, *alphabet])}
        tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.add_special_tokens([PAD, UNKNOWN])
        trainer = None
    if config.lowercase:
        tokenizer.normalizer = normalizers.Lowercase()
    if trainer is not None:
        length = len(texts) if isinstance(texts, Sized) else None
        tokenizer.train_from_iterator(texts, trainer, length=length)
    return tokenizer


def _pretrained(name: str) -> PreTrainedTokenizerBase:
    folder = Path(name).expanduser()
    if name.startswith((".", "/", "~")) and not folder.exists():
        raise UserError(f"data.tokens: {missing(folder)}")
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(str(folder) if folder.exists() else name)
    except (OSError, ValueError, KeyError) as error:
        problem = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".:")
        hint = suggestion(name, TRAINED_TOKENS)
        hint = hint if hint.startswith("did") else "check the name, or the folder for its tokenizer files."
        raise UserError(
            f"data.tokens must be {', '.join(TRAINED_TOKENS)} or a pretrained tokenizer, but {name!r} could not be "
            f"loaded as one ({problem}): {hint}"
        ) from None
    if tokenizer.pad_token is None:
        tokenizer.add_special_tokens({"pad_token": PAD})
    # The limit belongs to the model it was made for.
    tokenizer.model_max_length = VERY_LARGE_INTEGER
    return tokenizer


@contextmanager
def _no_rust_threads() -> Iterator[None]:
    """Keep the Rust library from starting threads of its own, after which it warns or hangs in forked processes."""
    before = os.environ.get("TOKENIZERS_PARALLELISM")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    try:
        yield
    finally:
        if before is None:
            del os.environ["TOKENIZERS_PARALLELISM"]
        else:
            os.environ["TOKENIZERS_PARALLELISM"] = before


def encode(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], config: DataConfig) -> list[list[int]]:
    """Return the token ids of each text, cut to `config.max_length`, within the special tokens the tokenizer adds.

    Raises:
        UserError: `config.max_length` leaves no room beside the special tokens.
    """
    return [ids.tolist() for ids, _ in _encode(tokenizer, texts, config.max_length, config.keep)]


def _encode(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], max_length: int, keep: str
) -> list[tuple[np.ndarray, int]]:
    """Return each text's ids, int32, and how many tokens were cut off."""
    before, after = _special_tokens(tokenizer)
    room = max_length - len(before) - len(after)
    if max_length and room < 1:
        raise UserError(
            f"data.max_length is {max_length}, but the tokenizer adds {len(before) + len(after)} special tokens to "
            "each document: make it larger."
        )
    result = []
    for content in _contents(tokenizer, texts):
        kept = content
        if max_length and len(content) > room:
            kept = content[:room] if keep == "first" else content[-room:]
        result.append((np.concatenate([before, kept, after]), len(content) - len(kept)))
    return result


def _contents(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[np.ndarray]:
    """Return the ids of each text without special tokens, whole."""
    if not tokenizer.is_fast:
        return [_ids(tokenizer.encode(text, add_special_tokens=False, verbose=False)) for text in texts]
    backend = _backend(tokenizer)

    def work(piece: list[str]) -> list[np.ndarray]:
        return [_ids(encoding.ids) for encoding in backend.encode_batch_fast(piece, add_special_tokens=False)]

    with _no_rust_threads(), ThreadPoolExecutor(_cores()) as threads:
        return [ids for piece in threads.map(work, _pieces(texts)) for ids in piece]


def _backend(tokenizer: PreTrainedTokenizerBase) -> Tokenizer:
    """Return what does the work, without the truncation and padding that its file or an earlier call asked for."""
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    backend.encode_special_tokens = tokenizer.split_special_tokens
    return backend


def _pieces(texts: Sequence[str]) -> Iterator[list[str]]:
    piece: list[str] = []
    size = 0
    for text in texts:
        piece.append(text)
        size += len(text)
        if size >= _PIECE:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece


def _ids(values: Sequence[int]) -> np.ndarray:
    return np.array(values, dtype=np.int32)


def _cores() -> int:
    # The cores this process may use, which in a container are fewer than the machine has.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _special_tokens(tokenizer: PreTrainedTokenizerBase) -> tuple[np.ndarray, np.ndarray]:
    """Return the ids that the tokenizer puts before and after a document."""
    whole = tokenizer.encode("a", add_special_tokens=True)
    inner = tokenizer.encode("a", add_special_tokens=False)
    starts = [i for i in range(len(whole) - len(inner) + 1) if whole[i : i + len(inner)] == inner]
    if not starts:
        raise UserError(f"the tokenizer {tokenizer.name_or_path!r} changes documents when it adds special tokens.")
    return _ids(whole[: starts[0]]), _ids(whole[starts[0] + len(inner) :])


def tokenize(
    dataset: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    config: DataConfig,
    label_to_id: dict[str, int] | None,
    description: str,
) -> Dataset:
    """Turn documents into tokens, on all cores, with a progress bar, and only once: the result is cached.

    Args:
        dataset: Columns text and, if labels are wanted, label and where, as `longspan.data.sources` makes them.
        tokenizer: What makes the tokens.
        config: How many tokens to keep, and which end.
        label_to_id: Class numbers by label; None for documents without labels.
        description: What the progress bar says.

    Returns:
        Columns `input_ids` (int32 list), `length` (tokens kept, special ones included), `removed` (tokens cut off)
        and, with `label_to_id`, `labels` (class number).

    Raises:
        UserError: A label is not in `label_to_id`, or `config.max_length` leaves no room beside the special tokens.
    """
    features = {"input_ids": List(Value("int32")), "length": Value("int32"), "removed": Value("int64")}
    if label_to_id is not None:
        features["labels"] = Value("int64")
    max_length, keep = config.max_length, config.keep

    def examples(batch: dict[str, list[str]]) -> dict[str, list[Any]]:
        encoded = _encode(tokenizer, batch["text"], max_length, keep)
        columns: dict[str, list[Any]] = {
            "input_ids": [ids for ids, _ in encoded],
            "length": [len(ids) for ids, _ in encoded],
            "removed": [removed for _, removed in encoded],
        }
        if label_to_id is not None:
            for label, where in zip(batch["label"], batch["where"], strict=True):
                if label not in label_to_id:
                    raise UserError(
                        f"{where}: the label {label!r} is not among those the model knows: "
                        f"{suggestion(label, label_to_id)}"
                    )
            columns["labels"] = [label_to_id[label] for label in batch["label"]]
        return columns

    facts = [_TOKENS_VERSION, dataset._fingerprint, _hash(tokenizer), max_length, keep, label_to_id]
    cores = _cores()
    return dataset.map(
        examples,
        batched=True,
        # Documents may be long: what is read, encoded and written at a time stays small.
        batch_size=128,
        writer_batch_size=128,
        remove_columns=dataset.column_names,
        features=Features(features),
        num_proc=cores if not tokenizer.is_fast and cores > 1 and len(dataset) >= _SLOW_ROWS else None,
        new_fingerprint=hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32],
        desc=description,
    )


def _hash(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return a hash of all that decides on the tokens."""
    digest = hashlib.sha256()
    if tokenizer.is_fast:
        digest.update(f"{tokenizer.split_special_tokens} {_backend(tokenizer).to_str()}".encode())
    else:
        with tempfile.TemporaryDirectory() as folder:
            tokenizer.save_pretrained(folder)
            for file in sorted(Path(folder).iterdir()):
                digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()


def truncation_table(dataset: Dataset) -> dict[str, int | float]:
    """Summarise what `tokenize` returned.

    Returns:
        `documents`; `tokens`, `median_length` and `longest`, in tokens before anything was cut; `cut_documents` and
        `removed_tokens`, how many documents were cut and how many tokens that cost.
    """
    columns = dataset.with_format("numpy")
    removed = columns["removed"][:].astype(np.int64)
    whole = columns["length"][:].astype(np.int64) + removed
    return {
        "documents": len(whole),
        "tokens": int(whole.sum()),
        "cut_documents": int((removed > 0).sum()),
        "removed_tokens": int(removed.sum()),
        "median_length": float(np.median(whole)) if len(whole) else 0.0,
        "longest": int(whole.max(initial=0)),
    }
