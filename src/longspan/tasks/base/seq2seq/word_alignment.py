"""Alignment of words of a source and a target that are translations of each other: `WordAligner`."""

import re
from collections.abc import Sequence

import numpy as np
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from longspan.data.text.offsets import tokens_with_offsets
from longspan.data.text.tokenization import special_tokens

_WORD = re.compile(r"\S+")
#: Tokens before one that are decoded with it, to see whether a word begins there.
_BEFORE = 16


def source_words(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], lengths: Sequence[int]) -> list[list[int]]:
    """Return for each token that is read of texts the number of its word, -1 for none, such as an end token.

    Words are what white space separates, as `str.split` does.

    Args:
        tokenizer: The tokenizer of sources.
        texts: The sources.
        lengths: Number of tokens read of each, special ones around them included.
    """
    before, after = (len(ids) for ids in special_tokens(tokenizer, 1))
    found = []
    for text, length, (_, offsets) in zip(texts, lengths, tokens_with_offsets(tokenizer, texts), strict=True):
        ends = np.array([word.end() for word in _WORD.finditer(text)], dtype=int)
        words = [-1] * before
        for start, end in offsets[: length - before - after].tolist():
            letter = _WORD.search(text, start, end)
            words.append(-1 if letter is None else int(np.searchsorted(ends, letter.start(), side="right")))
        found.append([*words, *[-1] * after])
    return found


def target_words(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> list[int]:
    """Return for each token of a target the number of its word in the text that it stands for, -1 for none."""
    ignored, words, count = set(tokenizer.all_special_ids), list[int](), 0

    def text(start: int, end: int) -> str:
        some = [token for token in ids[start:end] if token not in ignored]
        decoded: str = tokenizer.decode(some, clean_up_tokenization_spaces=False)
        return decoded

    for place in range(len(ids)):
        start = max(0, place - _BEFORE)
        count += len(text(start, place + 1).split()) - len(text(start, place).split())
        words.append(count - 1 if text(place, place + 1).strip() else -1)
    return words


class WordAligner:
    """Links each word of a target to the word of its source that is read most where the target's word is read.

    Weights of a target's word are the mean over its tokens, of a source's word the sum over its tokens (Garg et al.
    2019, https://arxiv.org/abs/1909.02074).

    Args:
        tokenizer: The tokenizer of targets.
        sources: For each source the number of the word of each of its tokens, as `source_words` returns it.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, sources: Sequence[Sequence[int]]) -> None:
        self.tokenizer, self.sources = tokenizer, sources

    def __call__(self, row: int, ids: Sequence[int], weights: Tensor) -> list[int]:
        """Return for each token of a target the word of its source that its word is linked to, -1 for none.

        Args:
            row: The number of the source.
            ids: t tokens of the target.
            weights: (t, m), those of the source's tokens.
        """
        source = np.array(self.sources[row], dtype=int)
        target = np.array(target_words(self.tokenizer, ids), dtype=int)
        read = weights.double().numpy()[:, : len(source)]
        by_word = np.zeros((source.max(initial=-1) + 1, len(ids)))
        np.add.at(by_word, source[source >= 0], read[:, source >= 0].T)
        if not by_word.size:
            return [-1] * len(ids)
        best = {word: int(by_word[:, target == word].sum(1).argmax()) for word in {*target.tolist()} - {-1}}
        return [best.get(word, -1) for word in target.tolist()]

    def pairs(self, ids: Sequence[int], links: Sequence[int]) -> list[list[int]]:
        """Return the pairs of a source's and a target's word that are linked, in the order of the target."""
        words = target_words(self.tokenizer, ids)
        found = {(word, source) for word, source in zip(words, links, strict=True) if word >= 0 and source >= 0}
        return [[source, word] for word, source in sorted(found)]
