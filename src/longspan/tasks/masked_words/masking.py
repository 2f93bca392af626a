"""Masked tokens of a text, and the model's input in their place: `Masking`."""

import numpy as np
from transformers import PreTrainedTokenizerBase

from longspan.data.text.words import word_starts
from longspan.models.parts.losses import IGNORED

#: Of the tokens to be predicted, the share that is replaced by the mask, and that up to which by a random token; the
#: others stay, as no text that the model is used for later has masks.
MASKED, REPLACED = 0.8, 0.9
#: Lengths of spans in words: geometric, up to a longest.
_STOP, LONGEST = 0.2, 10
_LENGTHS = np.cumsum((1 - _STOP) ** np.arange(LONGEST)) / np.sum((1 - _STOP) ** np.arange(LONGEST))


class Masking:
    """Chooses tokens to be predicted, and hides them.

    - "tokens": single tokens (Devlin et al. 2019, https://arxiv.org/abs/1810.04805).
    - "words": whole words, all tokens of each (the authors' later models).
    - "spans": words in a row, of a length drawn from a geometric distribution with p = 0.2, at most 10: 3.8 on average
      (Joshi et al. 2020, https://arxiv.org/abs/1907.10529).

    Of those chosen, 80 % are replaced by the mask, 10 % by a random token, and 10 % stay; of a span, all are treated
    alike. Special tokens, unknown ones among them, are neither chosen nor put in place of others.

    Args:
        tokenizer: Has a mask token.
        kind: "tokens", "words" or "spans".
        share: The share of the other tokens that is chosen: at least one token. With "words" the share is approximate.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, kind: str, share: float) -> None:
        self.kind, self.share = kind, share
        self.mask_id = tokenizer.mask_token_id
        self._ordinary = np.ones(len(tokenizer), dtype=bool)
        self._ordinary[tokenizer.all_special_ids] = False
        self._others = np.flatnonzero(self._ordinary)
        self._starts = np.ones(len(tokenizer), dtype=bool) if kind == "tokens" else word_starts(tokenizer)

    def __call__(
        self, ids: np.ndarray, documents: np.ndarray, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """The model's input, `(n,)`, and its labels, `(n,)`, -100 elsewhere.

        Args:
            ids: `(n,)` tokens.
            documents: `(n,)` the number of each one's document.
            rng: Generator of random numbers.
        """
        inputs, labels = ids.astype(np.int64), np.full(len(ids), IGNORED, dtype=np.int64)
        free = self._ordinary[ids]
        if not free.any():
            return inputs, labels
        wanted = max(1, round(self.share * int(free.sum())))
        begins = self._starts[ids] | ~free
        begins[0] = True
        begins[1:] |= documents[1:] != documents[:-1]
        words = np.cumsum(begins) - 1
        # Of each word, how many tokens may be chosen: all or none.
        sizes = np.bincount(words, free)
        if self.kind == "spans":
            spans = _spans(sizes, documents[begins], wanted, rng)[words]
            chosen = np.flatnonzero((spans >= 0) & free)
            fate = rng.random(len(sizes))[spans[chosen]]
        else:
            chosen = np.flatnonzero(_words(sizes, wanted, rng)[words] & free)
            fate = rng.random(len(chosen))
        labels[chosen] = inputs[chosen]
        inputs[chosen[fate < MASKED]] = self.mask_id
        replaced = chosen[(fate >= MASKED) & (fate < REPLACED)]
        inputs[replaced] = self._others[rng.integers(len(self._others), size=len(replaced))]
        return inputs, labels


def _words(sizes: np.ndarray, wanted: int, rng: np.random.Generator) -> np.ndarray:
    """Choose words with about `wanted` tokens, `(w,)` bool, given the tokens of each."""
    order = rng.permutation(np.flatnonzero(sizes))
    # The last one is chosen if more than half of it is wanted.
    count = int((np.cumsum(sizes[order]) - sizes[order] / 2 <= wanted).sum())
    chosen = np.zeros(len(sizes), dtype=bool)
    chosen[order[: max(1, count)]] = True
    return chosen


def _spans(sizes: np.ndarray, documents: np.ndarray, wanted: int, rng: np.random.Generator) -> np.ndarray:
    """Choose spans of words with about `wanted` tokens, `(w,)`: the number of each word's span, or -1.

    Args:
        sizes: `(w,)` tokens of each word; 0 is a gap.
        documents: `(w,)` the document of each word, beyond which no span reaches.
        wanted: Number of tokens.
        rng: Generator of random numbers.
    """
    spans, found, number = np.full(len(sizes), -1), 0, 0
    for start in rng.permutation(np.flatnonzero(sizes)).tolist():
        if found >= wanted:
            break
        if spans[start] >= 0:
            continue
        length = 1 + int(np.searchsorted(_LENGTHS, rng.random(), side="right"))
        for word in range(start, min(start + length, len(sizes))):
            if found >= wanted or not sizes[word] or spans[word] >= 0 or documents[word] != documents[start]:
                break
            spans[word] = number
            found += int(sizes[word])
        number += 1
    return spans
