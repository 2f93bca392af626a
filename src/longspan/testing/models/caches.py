"""Cached steps, one by one and in chunks, with padding, with beams and in `generate`."""

import inspect
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from longspan.testing.models.subject import (
    CACHES,
    LENGTH,
    LENGTHS,
    NotApplicable,
    Subject,
    cuts,
    deviation,
    padded,
    positions_of,
)

_CHUNKS = ((5, 1, 4, 3, 8), (1, 6, 2, 12), (2, 3, 7, 9))
_NEW = 6


def cached_steps(subject: Subject) -> Iterator[tuple[str, float]]:
    """Reading token by token with a cache, from the first token or after a prompt, gives the whole pass."""
    _need_cache(subject)
    ids = subject.draw(2)
    expected = subject.read(ids)
    yield "whole, with use_cache", deviation(_stream(subject, ids, [LENGTH])[0], expected)
    yield "from the first token", deviation(_stream(subject, ids, [1])[0], expected)
    yield "after a prompt", deviation(_stream(subject, ids, [9, 1])[0], expected)
    yield "after a short prompt", deviation(_stream(subject, ids, [2, 1])[0], expected)


def cached_chunks(subject: Subject) -> Iterator[tuple[str, float]]:
    """Reading several tokens at a time with a cache gives the whole pass."""
    _need_cache(subject)
    ids = subject.draw(2)
    expected = subject.read(ids)
    for sizes in _CHUNKS:
        found, _ = _stream(subject, ids, sizes)
        yield f"chunks of {', '.join(map(str, sizes[:4]))}", deviation(found, expected)


def cached_padding(subject: Subject) -> Iterator[tuple[str, float]]:
    """Continuing a prompt that is padded on the left, token by token, gives the whole pass without padding."""
    _need_cache(subject, padded=True)
    ids, pad = subject.draw(len(LENGTHS)), subject.config.pad_token_id or 0
    rows, mask = padded(ids, LENGTHS, "left", 0, pad)
    # Every prompt has real tokens, and as many as a short convolution at most.
    prompt = max(LENGTHS) - min(LENGTHS) + 2
    for where, size in (("in a batch", slice(None)), ("batch size 1", slice(1, 2))):
        found, _ = _stream(subject, rows[size], [prompt, 1], mask[size])
        for row, real, tokens in zip(found, mask[size], rows[size], strict=True):
            kept = real.bool()
            yield where, deviation(row[kept], subject.read(tokens[kept].unsqueeze(0))[0])


def beams(subject: Subject) -> Iterator[tuple[str, float]]:
    """A cache follows its rows when they are reordered, and the scores of beam search are those of its texts."""
    _need_cache(subject)
    ids, order = subject.draw(3), torch.tensor([2, 0, 0])
    half = LENGTH // 2
    try:
        _, cache = _stream(subject, ids[:, :half], [half])
    except NotApplicable:
        # A state that the model hides.
        cache = {}
    for name, held in cache.items():
        if hasattr(held, "reorder_cache"):
            held.reorder_cache(order)
            found, _ = _stream(subject, ids[order], [half, 1], cache={name: held}, begin=half)
            yield "reordered", deviation(found, subject.read(ids[order])[:, half:])
    if subject.task == "causal" and subject.model.can_generate():
        out = _generate(subject, ids[:, :half], None, num_beams=3, length_penalty=0.0, output_scores=True)
        logits = subject.read(out.sequences)[:, half - 1 : -1]
        chosen = logits.log_softmax(-1).gather(2, out.sequences[:, half:].unsqueeze(-1))
        yield "beam search", deviation(out.sequences_scores, chosen.sum((1, 2)))


def generation(subject: Subject) -> Iterator[tuple[str, float]]:
    """The logits of `generate`, with prompts padded on the left, are those of the whole pass without padding."""
    _need_cache(subject, padded=True)
    if not subject.model.can_generate():
        raise NotApplicable("it has no generate")
    lengths = [length - 8 for length in LENGTHS]
    rows, mask = padded(subject.draw(len(lengths)), lengths, "left", 0, subject.config.pad_token_id or 0)
    for where, size in (("in a batch", slice(None)), ("batch size 1", slice(1, 2))):
        out = _generate(subject, rows[size], mask[size], output_logits=True)
        logits = torch.stack(out.logits, 1)
        for row, tokens, length in zip(logits, out.sequences, mask[size].sum(1).tolist(), strict=True):
            whole = subject.read(tokens[-(length + _NEW) :].unsqueeze(0))[0]
            yield where, deviation(row, whole[length - 1 : -1])


def _generate(subject: Subject, ids: Tensor, mask: Tensor | None, **options: Any) -> Any:
    settings = subject.model.generation_config
    settings.eos_token_id, settings.pad_token_id, settings.bos_token_id = None, subject.config.pad_token_id or 0, 1
    if mask is not None:
        options["attention_mask"] = mask
    return subject.model.generate(ids, max_new_tokens=_NEW, do_sample=False, return_dict_in_generate=True, **options)


def _need_cache(subject: Subject, *, padded: bool = False) -> None:
    if subject.task == "masked":
        raise NotApplicable("it reads both directions")
    subject.require("use_cache")
    if padded and subject.task == "seq2seq":
        raise NotApplicable("the target is not padded on the left")
    if padded:
        subject.require("attention_mask")


def _stream(
    subject: Subject,
    ids: Tensor,
    sizes: Sequence[int],
    mask: Tensor | None = None,
    cache: dict[str, Any] | None = None,
    begin: int = 0,
) -> tuple[Tensor, dict[str, Any]]:
    """Read tokens in parts of these sizes, each with the cache of the one before.

    Args:
        ids: (b, t) tokens.
        sizes: of the parts; the last one is repeated.
        mask: (b, t) of 1 for real positions.
        cache: what the first part continues from, which read the tokens before `begin`.

    Returns:
        The logits from `begin` on, and the last cache, by the name of its argument.
    """
    cache, parts = cache or {}, []
    positions = positions_of(mask) if mask is not None and subject.counts_positions else None
    for start, end in cuts(sizes, ids.shape[1]):
        if end <= begin:
            continue
        more: dict[str, Any] = dict(cache)
        if mask is not None:
            more["attention_mask"] = mask[:, :end]
        if positions is not None:
            more["position_ids"] = positions[:, start:end]
        out = subject.model(**subject.named(ids[:, start:end]), use_cache=True, **more)
        parts.append(out.logits)
        found = [name for name in CACHES if getattr(out, name, None) is not None]
        if not found:
            raise NotApplicable("it returns no cache")
        taken = inspect.signature(subject.model.forward).parameters
        # A model that passes on what it does not name takes the first.
        name = next((name for name in found if name in taken), found[0])
        cache = {name: getattr(out, name)}
    return torch.cat(parts, 1), cache
