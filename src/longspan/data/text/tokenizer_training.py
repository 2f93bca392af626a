"""Learning tokenizers from text: bytes, characters, words and byte-level BPE."""

import re
from collections import Counter
from collections.abc import Iterable, Sized
from typing import Any

import datasets
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from longspan.data.config import DataConfig
from longspan.data.text.words import CHARACTERS, PLAIN

PAD, UNKNOWN, END, MASK = "<pad>", "<unk>", "<|endoftext|>", "<mask>"

_NOT_SPACE = r"\n|\S+"
"""The tokens of "whitespace": line breaks, and runs of anything but white space."""

_SPECIAL_WORD = r"<(?=pad>|mask>|\|endoftext\|>)"
"""Where words that look like special tokens are split."""


def learn(config: DataConfig, texts: Iterable[str], special: list[str], splitting: str = "") -> Tokenizer:
    """Return a tokenizer of the kind `config.tokens` whose first ids are the special tokens.

    Args:
        config: Which of `longspan.data.config.TRAINED_TOKENS`, how many, and whether in lower case.
        texts: Documents or pieces of them, read once, or not at all for bytes.
        special: `PAD`, `UNKNOWN` and perhaps `END` and `MASK`, in this order.
        splitting: The regular expression by which the tokenizer splits texts into words; `texts` are then such words.
            Of bytes and "bpe", words are those with a space before them.
    """
    options: dict[str, Any] = {
        "special_tokens": special,
        "vocab_size": config.vocab_size,
        "show_progress": not datasets.are_progress_bars_disabled(),
    }
    # Sorted, so that the ids of single bytes are the same everywhere.
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer: Any = None
    within: Any = None
    if config.tokens == "words":
        tokenizer = Tokenizer(models.WordLevel(unk_token=UNKNOWN))
        if not splitting:
            tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        trainer = trainers.WordLevelTrainer(**options)
    elif config.tokens == "pieces":
        tokenizer = Tokenizer(models.BPE())
        within = pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=False)
        tokenizer.pre_tokenizer = within if splitting else _splitting_words(PLAIN, within)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(initial_alphabet=alphabet, **options)
    elif config.tokens == "whitespace":
        # Published texts contain "<unk>" themselves, meaning the unknown token.
        tokenizer = Tokenizer(models.WordLevel(_frequent(config, texts, special), unk_token=UNKNOWN))
        parts = [(_SPECIAL_WORD, "isolated", False), (_NOT_SPACE, "removed", True)]
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Split(Regex(pattern), behavior, invert) for pattern, behavior, invert in parts]
        )
    elif config.tokens == "bpe":
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(initial_alphabet=alphabet, **options)
    elif config.tokens == "characters":
        # Without merges, BPE looks up characters one by one: ten times as fast as splitting first.
        vocabulary = _frequent(config, texts, special)
        tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token=UNKNOWN))
        tokenizer.decoder = decoders.Fuse()
    else:
        vocabulary = {token: number for number, token in enumerate([*special, *alphabet])}
        tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.decoder = decoders.ByteLevel()
    tokenizer.normalizer = normalizer(config)
    if trainer is None:
        tokenizer.add_special_tokens(special)
    else:
        length = len(texts) if isinstance(texts, Sized) else None
        tokenizer.train_from_iterator(texts, trainer, length=length)
    if splitting and config.tokens not in ("bytes", "bpe"):
        pattern = CHARACTERS if config.tokens == "characters" else splitting
        tokenizer.pre_tokenizer = _splitting_words(pattern, within)
    return tokenizer


def normalizer(config: DataConfig) -> Any:
    """Normalizer of a learned tokenizer, None for nothing.

    Words become what NFC makes of them, so that a character is the same with its accent in it and with one after it.
    Bytes stay as they are.
    """
    parts: list[normalizers.Normalizer] = [] if config.tokens == "bytes" else [normalizers.NFC()]
    parts += [normalizers.Lowercase()] if config.lowercase else []
    return parts[0] if len(parts) == 1 else normalizers.Sequence(parts) if parts else None


def _splitting_words(pattern: str, within: Any) -> Any:
    """Pre-tokenizer that splits texts into the words that match, and then perhaps by `within`."""
    words = pre_tokenizers.Split(Regex(pattern), "removed", invert=True)
    return pre_tokenizers.Sequence([words] if within is None else [words, within])


def _frequent(config: DataConfig, texts: Iterable[str], special: list[str]) -> dict[str, int]:
    """Number the special tokens, then words or characters from the most frequent on, up to `vocab_size`."""
    counts: Counter[str] = Counter()
    normalizing = normalizer(config)
    for text in texts:
        # Not `str.lower`, which recognises the end of a word where the tokenizer does not.
        text = normalizing.normalize_str(text) if normalizing else text
        if config.tokens == "whitespace":
            text = re.sub(_SPECIAL_WORD, " < ", text)
        counts.update(text if config.tokens == "characters" else re.findall(_NOT_SPACE, text))
    for token in special:
        del counts[token]
    ordered = sorted(counts, key=lambda token: (-counts[token], token))
    return {token: number for number, token in enumerate([*special, *ordered][: config.vocab_size])}
