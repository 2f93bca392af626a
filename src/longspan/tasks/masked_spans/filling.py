"""Filling in the masks of a text by writing a target: `with_sentinels` and `filled`."""

from collections.abc import Sequence
from itertools import chain

from transformers import PreTrainedTokenizerBase

from longspan.data.text.masks import around_masks
from longspan.data.text.tokenizer_training import MASK


def with_sentinels(tokenizer: PreTrainedTokenizerBase, text: str, sentinels: Sequence[int]) -> list[int]:
    """Return the source of a text with masks, at most as many as there are sentinels."""
    first, *others = (ids.tolist() for ids in around_masks(tokenizer, text))
    parts = chain.from_iterable([one, *ids] for one, ids in zip(sentinels, others, strict=False))
    return [*first, *parts, tokenizer.eos_token_id]


def filled(
    tokenizer: PreTrainedTokenizerBase, text: str, target: Sequence[int], sentinels: Sequence[int]
) -> tuple[str, list[str]]:
    """Return a text with its masks filled in, and what each is filled with; "" for what the target lacks."""
    first, *parts = text.split(MASK)
    numbers = {token: number for number, token in enumerate(sentinels[: len(parts)])}
    found: list[list[int]] = [[] for _ in parts]
    current: list[int] = []
    for token in target:
        if token in numbers:
            # Of a sentinel that is written twice, the first span counts.
            current = found[numbers[token]] if not found[numbers[token]] else []
        else:
            current.append(token)
    spans = [str(tokenizer.decode(ids, skip_special_tokens=True)).strip() for ids in found]
    return first + "".join(f"{span}{part}" for span, part in zip(spans, parts, strict=True)), spans
