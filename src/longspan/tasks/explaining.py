"""Explanations of what models say about examples with one answer each: which positions speak for it."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad as pad_end

from longspan.data.batches.streams import pad
from longspan.data.processor import Places
from longspan.data.sources.formats.rows import Row
from longspan.errors import UserError, check_choice
from longspan.explanations.faithfulness import by_chance, faithfulness
from longspan.explanations.methods import METHODS
from longspan.explanations.question import Question
from longspan.models import LongspanConfig
from longspan.models.limits import too_long
from longspan.models.wide.classifier import NgramShares
from longspan.results import Prediction
from longspan.results.explanation import Explanation
from longspan.tasks.recipe import Run

#: N-grams that an explanation names.
_NGRAMS = 20


@dataclass(frozen=True)
class Asked:
    """What is explained of a prediction.

    Attributes:
        name: What it is called.
        unit: What scores add up in.
        value: From a model's outputs (b, c) to the number (b,) that is explained.
        share: From these to what deletions change as people see it, (b,).
    """

    name: str
    unit: str
    value: Callable[[Tensor], Tensor]
    share: Callable[[Tensor], Tensor]


def class_asked(names: Sequence[str], name: str) -> Asked:
    """Return the log-odds and the probability of one of several classes that exclude each other."""
    check_choice("class", name, names)
    number = list(names).index(name)

    def odds(logits: Tensor) -> Tensor:
        others = torch.cat((logits[:, :number], logits[:, number + 1 :]), 1)
        return logits[:, number] - others.logsumexp(1)

    return Asked(name, "log-odds", odds, lambda logits: logits.softmax(1)[:, number])


def label_asked(names: Sequence[str], name: str) -> Asked:
    """Return the log-odds and the probability of one of several labels that do not exclude each other."""
    check_choice("label", name, names)
    number = list(names).index(name)
    return Asked(name, "log-odds", lambda logits: logits[:, number], lambda logits: logits[:, number].sigmoid())


def number_asked(own: str, name: str) -> Asked:
    """Return the only number there is."""
    check_choice("number", name or own, [own])
    return Asked(own, "units", lambda logits: logits[:, 0], lambda logits: logits[:, 0])


class Explains(Protocol):
    """What is needed of a task."""

    example: ClassVar[str]

    def answer(self, where: str, logits: Tensor, config: LongspanConfig) -> Prediction: ...

    def asked(self, config: LongspanConfig, prediction: Prediction, of: str) -> Asked: ...


def explained(task: Explains, run: Run, row: Row, of: str, method: str, check: bool) -> Explanation:
    """Explain what a run's model says about a row; see `longspan.explain`.

    Raises:
        UserError: The row has no prediction, its positions have no names for people, or nothing is called `of`.
    """
    processor, data, model = run.processor, run.recipe.data, run.model
    if problem := row.problem or processor.problem(row.values):
        raise UserError(f"{row.where}: expected {task.example} to explain, got {problem}; choose another row.")
    names = [column.name for column in processor.columns(data)]
    (encoded,) = processor.encode({name: [row.values.get(name)] for name in names}, data)
    places = processor.places(row.values, encoded, data)
    if problem := too_long(model, len(places.spans)):
        raise UserError(f"{row.where}: {problem}.")
    batch = {name: given.to(model.device) for name, given in pad([encoded.streams], processor.streams).items()}
    with torch.no_grad():
        logits = model(**batch).logits.float().cpu()
    prediction = task.answer(row.where, logits[0], model.config)
    asked = task.asked(model.config, prediction, of)
    question = Question(model, batch, "attention_mask", asked.value, asked.share, masked=places.unit == "characters")
    counted, ngrams = None, list[dict[str, Any]]()
    if model.wide is not None:
        ids = np.asarray(encoded.streams[next(iter(processor.streams))])
        counted, ngrams = _ngrams(model, ids, places, asked.value, logits)
    deep, scores = _scores(question, method, counted)
    spans = _joined(places.spans, int(question.real.sum()))
    parts = {}
    if counted is not None and method != "occlusion":
        parts = {"network": deep[: len(spans)].tolist(), "n-grams": counted.tolist()}
    said = prediction.to_dict()
    del said["where"]
    if encoded.removed:
        said |= {"tokens_read": len(places.spans), "tokens_total": len(places.spans) + encoded.removed}
    return Explanation(
        where=row.where,
        of=asked.name,
        unit=asked.unit,
        value=float(asked.value(logits)),
        method=method,
        prediction=said,
        text=places.text,
        places=places.unit,
        names=list(places.names),
        spans=spans.tolist(),
        scores=scores[: len(spans)].tolist(),
        parts=parts,
        ngrams=ngrams,
        checks=_checks(question, method, scores, counted) if check else None,
    )


def _joined(spans: np.ndarray, count: int) -> np.ndarray:
    """Return the spans of the model's positions, where several are joined into each of `count`."""
    if count == len(spans):
        return spans
    stride = -(-len(spans) // count)
    first = np.arange(count) * stride
    return np.stack([spans[first, 0], spans[np.minimum(first + stride, len(spans)) - 1, 1]], 1)


def _scores(question: Question, method: str, counted: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the scores of a method for the network and those of all parts, each (t,), zero at padding."""
    deep = METHODS[method](question)
    if counted is None or method == "occlusion":
        # Without a window, its n-grams are gone, too.
        return deep, deep
    return deep, deep + pad_end(counted, (0, len(deep) - len(counted)))


def _checks(question: Question, method: str, scores: Tensor, counted: Tensor | None) -> dict[str, dict[str, float]]:
    """Return what deletions say of the scores, of other methods' and of random ones."""
    found = {method: faithfulness(question, scores)}
    for other in METHODS:
        if other != method:
            found[other] = faithfulness(question, _scores(question, other, counted)[1])
    found["random"] = by_chance(question)
    return {name: asdict(one) for name, one in found.items()}


def _ngrams(
    model: Any, ids: np.ndarray, places: Places, value: Callable[[Tensor], Tensor], logits: Tensor
) -> tuple[Tensor, list[dict[str, Any]]]:
    """Return what each token's n-grams add to the number that is explained, and the n-grams that add most."""
    found = model.wide.ngrams(torch.from_numpy(ids).long().to(model.device))
    at = logits.clone().requires_grad_()
    (slope,) = torch.autograd.grad(value(at).sum(), at)
    adds = (found.logits.cpu() @ slope[0]) * float(model.wide.scales[0])
    shares = NgramShares(found.begin.cpu(), found.end.cpu(), found.hash.cpu(), adds.unsqueeze(1))
    different, group = np.unique(shares.hash.numpy(), return_inverse=True)
    totals, named = np.bincount(group, adds.numpy(), len(different)), []
    for number in np.argsort(-np.abs(totals))[:_NGRAMS].tolist():
        begins, first = np.unique(shares.begin.numpy()[group == number], return_index=True)
        last = int(shares.end.numpy()[group == number][first[0]])
        start, stop = int(places.spans[begins[0]][0]), int(places.spans[last - 1][1])
        name = places.text[start:stop].strip() if 0 <= start < stop else ""
        if name:
            named.append({"text": name, "score": float(totals[number]), "times": len(begins)})
    return shares.of_tokens(len(ids))[:, 0], named
