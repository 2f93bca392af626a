"""Byte-pair encoding that leaves out merges at random, so that a text has many segmentations: `BpeDropout`."""

import json
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from tokenizers import pre_tokenizers
from transformers import PreTrainedTokenizerBase

from longspan.data.text.tokenization import backend_of, lowers, token_ids
from longspan.data.text.word_lookup import lookup_for
from longspan.errors import UserError

_MOST_WORDS = 500_000
"""Number of words to remember before starting again."""


class BpeDropout:
    """Draws segmentations of texts by BPE-dropout (Provilkov et al. 2020, algorithm 1).

    At each step, each possible merge of two neighbours in a word is left out with probability `rate`. The most frequent
    of the others is done. A word is ready when none is left.

    The tokenizers library has this, too, but draws from a generator without a seed.

    Args:
        tokenizer: Byte-level BPE, such as the one of `data.tokens="bpe"`.
        rate: Above 0 and below 1.

    Raises:
        UserError: The tokenizer is another one.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, rate: float) -> None:
        self.tokenizer, self.rate = tokenizer, rate
        saved = json.loads(backend_of(tokenizer).to_str()) if tokenizer.is_fast else {}
        model = saved.get("model", {})
        changed = ("byte_fallback", "ignore_merges", "continuing_subword_prefix", "end_of_word_suffix")
        letters = set(pre_tokenizers.ByteLevel.alphabet())
        plain = model.get("type") == "BPE" and model["merges"] and not any(map(model.get, changed))
        if not plain or saved["pre_tokenizer"] is None or not letters <= model["vocab"].keys():
            raise UserError(
                "expected a tokenizer of byte-level BPE for training.bpe_dropout, such as that of data.tokens=bpe, got "
                f"{tokenizer.name_or_path or 'another kind'!r}; set data.tokens=bpe, or leave out the dropout."
            )
        self._vocabulary: dict[str, int] = model["vocab"]
        numbers = self._vocabulary
        # From two neighbours to the rank of their merge and what they become.
        self._merges = {
            (numbers[left], numbers[right]): (rank, numbers[left + right])
            for rank, (left, right) in enumerate(model["merges"])
        }
        backend = backend_of(tokenizer)
        self._lookup = lookup_for(backend)
        self._lowercase = lowers(backend)
        # Spelled out in a text, special tokens are ordinary words, unless the tokenizer recognises them.
        added = backend.get_added_tokens_decoder().values()
        self._added = [one.content for one in added if not (one.special and backend.encode_special_tokens)]
        self._words: dict[str, list[tuple[list[int], list[int]]]] = {}

    def __call__(self, text: str, random: np.random.Generator) -> list[int]:
        """Return the token ids of a segmentation of a text, without special tokens."""
        if any(content in text for content in self._added):
            return [int(one) for one in token_ids(self.tokenizer, [text])[0]]
        if len(self._words) > _MOST_WORDS:
            self._words = {}
        kept = _KeepDraws(random, self.rate)
        found: list[int] = []
        for word in [text] if self._lookup is None else self._lookup.words(text, self._lowercase):
            pieces = self._words.get(word)
            if pieces is None:
                pieces = self._words[word] = self._pieces(word)
            for letters, whole in pieces:
                # As each merge makes one token of two. Most words keep all of theirs.
                merges = len(letters) - len(whole)
                if merges <= kept.run:
                    kept.run -= merges
                    found += whole
                else:
                    found += self._merged(letters, kept)
        return found

    def _pieces(self, word: str) -> list[tuple[list[int], list[int]]]:
        """Pieces that are merged within, each as its letters and with all merges."""
        backend = backend_of(self.tokenizer)
        text = word if backend.normalizer is None else backend.normalizer.normalize_str(word)
        pieces = []
        for piece, _ in backend.pre_tokenizer.pre_tokenize_str(text):
            letters = [self._vocabulary[letter] for letter in piece]
            pieces.append((letters, self._merged(letters, None)))
        return pieces

    def _merged(self, letters: list[int], kept: "_KeepDraws | None") -> list[int]:
        """Return a segmentation of the letters of a word; without `kept`, the one with all merges."""
        ids, merges = list(letters), self._merges
        while True:
            possible = sorted((*merges[pair], place) for place, pair in enumerate(pairwise(ids)) if pair in merges)
            for _, merged, place in possible:
                if kept is None or next(kept):
                    ids[place : place + 2] = [merged]
                    break
            else:
                return ids


class _KeepDraws(Iterator[bool]):
    """Draws whether each merge is kept, by the lengths of the runs of those that are.

    Attributes:
        run: Number of the next ones that are kept before one is left out.
    """

    def __init__(self, random: np.random.Generator, rate: float) -> None:
        self._random, self._rate = random, rate
        self._runs: list[int] = []
        self.run = self._next_run()

    def __next__(self) -> bool:
        if self.run:
            self.run -= 1
            return True
        self.run = self._next_run()
        return False

    def _next_run(self) -> int:
        if not self._runs:
            # Several at once, as one costs as much.
            self._runs = (self._random.geometric(self._rate, 16) - 1).tolist()
        return self._runs.pop()
