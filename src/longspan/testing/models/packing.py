"""Packed documents."""

import itertools
import re
from collections.abc import Iterator
from typing import Any

import torch

from longspan.testing.models.subject import NotApplicable, Subject, deviation

_LENGTHS = (9, 5, 7)
#: Masks of transformers separate packed documents where they are made with position_ids.
_SEPARATES = re.compile(r"create_causal_mask\([^)]*position_ids|\"position_ids\": position_ids")


def packing(subject: Subject) -> Iterator[tuple[str, float]]:
    """Documents packed in a row, with what `DataCollatorWithFlattening` says about them, are read as if separate."""
    own = subject.accepts("document_ids")
    if subject.task == "seq2seq" or not (subject.counts_positions or own):
        raise NotApplicable("forward takes no position_ids")
    ids = subject.draw(1)
    ends = torch.tensor([0, *_LENGTHS]).cumsum(0)
    numbers = torch.arange(len(_LENGTHS), dtype=torch.int32)
    numbered = numbers.repeat_interleave(torch.tensor(_LENGTHS)).unsqueeze(0)
    more: dict[str, Any] = {"position_ids": torch.cat([torch.arange(length) for length in _LENGTHS]).unsqueeze(0)}
    if own:
        more["document_ids"] = numbered.long()
    elif any(kind.kind is kind.VAR_KEYWORD for kind in subject.parameters.values()):
        more["seq_idx"] = numbered
        more |= dict.fromkeys(("cu_seq_lens_q", "cu_seq_lens_k"), ends.int())
        more |= dict.fromkeys(("max_length_q", "max_length_k"), max(_LENGTHS))
    found = subject.read(ids, **more)
    for number, (begin, end) in enumerate(itertools.pairwise(ends)):
        alone = subject.read(ids[:, begin:end])
        yield f"document {number + 1}", deviation(found[:, begin:end], alone)


def limit_of_packing(subject: Subject) -> str:
    """Return why nothing claims that packed documents are separate; "" where something does."""
    if subject.task == "masked" and not subject.accepts("document_ids"):
        return "it is an encoder"
    if subject.stateful and not any(word in subject.source for word in ("cu_seq_lens", "seq_idx")):
        return "its recurrent layers take no boundaries of documents"
    if subject.accepts("document_ids") or _SEPARATES.search(subject.source):
        return ""
    return "its attention mask is made without position_ids"
