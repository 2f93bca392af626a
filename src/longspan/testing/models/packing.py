"""Packed documents."""

from collections.abc import Iterator
from typing import Any

import torch

from longspan.testing.models.subject import NotApplicable, Subject, deviation

_LENGTHS = (9, 5, 7)


def packing(subject: Subject) -> Iterator[tuple[str, float]]:
    """Documents packed in a row, with what `DataCollatorWithFlattening` says about them, are read as if separate."""
    if subject.task == "seq2seq" or not subject.counts_positions:
        raise NotApplicable("forward takes no position_ids")
    ids = subject.draw(1)
    ends = torch.tensor([0, *_LENGTHS]).cumsum(0)
    more: dict[str, Any] = {"position_ids": torch.cat([torch.arange(length) for length in _LENGTHS]).unsqueeze(0)}
    if any(kind.kind is kind.VAR_KEYWORD for kind in subject.parameters.values()):
        numbers = torch.arange(len(_LENGTHS), dtype=torch.int32)
        more["seq_idx"] = numbers.repeat_interleave(torch.tensor(_LENGTHS)).unsqueeze(0)
        more |= dict.fromkeys(("cu_seq_lens_q", "cu_seq_lens_k"), ends.int())
        more |= dict.fromkeys(("max_length_q", "max_length_k"), max(_LENGTHS))
    found = subject.read(ids, **more)
    for number, (begin, end) in enumerate(zip(ends[:-1], ends[1:], strict=True)):
        alone = subject.read(ids[:, begin:end])
        yield f"document {number + 1}", deviation(found[:, begin:end], alone)


def packing_is_claimed(subject: Subject) -> str:
    """Return why nothing claims that packed documents are separate; nothing where something does."""
    if subject.stateful and not any(word in subject.source for word in ("cu_seq_lens", "seq_idx")):
        return "its recurrent layers take no boundaries of documents"
    if not any(word in subject.source for word in ("create_causal_mask", "document_ids")):
        return "it does not use the masks of transformers that separate packed documents"
    return ""
