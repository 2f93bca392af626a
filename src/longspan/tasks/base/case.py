"""A prediction to explain, `Case`, and the positions that speak for it, `explained`."""

import base64
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad as pad_end
from transformers import PreTrainedTokenizerBase

from longspan.data.processor import Places
from longspan.data.text.tokenization import token_ids
from longspan.errors import UserError, check_choice
from longspan.explanations.faithfulness import by_chance, faithfulness
from longspan.explanations.methods import METHODS
from longspan.explanations.question import Question
from longspan.explanations.weights import mean_weight, weight_rows
from longspan.models.wide.classifier import NgramShares
from longspan.report.explanation import Explanation

#: N-grams that an explanation names.
_NGRAMS = 20
#: Tokens that are named beside the one that is explained.
_BEST = 12


@dataclass(frozen=True)
class Target:
    """Number of a prediction that is explained.

    Attributes:
        name: Its name.
        unit: Unit of the scores.
        value: From a model's outputs (b, ...) to the number (b,) that is explained.
        share: From these to what deletions change as people see it, (b,).
    """

    name: str
    unit: str
    value: Callable[[Tensor], Tensor]
    share: Callable[[Tensor], Tensor]

    def at(self, place: int) -> "Target":
        """Return the same of one position of the outputs (b, t, ...)."""
        return replace(
            self,
            value=lambda logits: self.value(logits[:, place]),
            share=lambda logits: self.share(logits[:, place]),
        )


def class_asked(names: Sequence[str], name: str) -> Target:
    """Return the log-odds and the probability of one of several classes that exclude each other."""
    check_choice("class", name, names)
    return number_of_class(list(names).index(name), name)


def number_of_class(number: int, name: str) -> Target:
    """Return the same of the class with a number."""

    def odds(logits: Tensor) -> Tensor:
        others = torch.cat((logits[:, :number], logits[:, number + 1 :]), 1)
        return logits[:, number] - others.logsumexp(1)

    return Target(name, "log-odds", odds, lambda logits: logits.softmax(1)[:, number])


def token_asked(tokenizer: PreTrainedTokenizerBase, of: str, scores: Tensor, known: int | None = None) -> Target:
    """Return the log-odds and the probability of a token: `of`, or the `known` one, or the one with the best score.

    Args:
        tokenizer: The tokenizer.
        of: A text that is one token, with or without the space before a word.
        scores: (v,), those of all tokens.
        known: The number of a token.

    Raises:
        UserError: `of` is not one token.
    """
    number = int(scores.argmax()) if known is None else known
    if of:
        found = token_ids(tokenizer, [of, f" {of}"])
        single = [int(ids[0]) for ids in found if len(ids) == 1]
        if not single:
            raise UserError(
                f"expected one token of the model, got {of!r}, which is {len(found[0])}; name a single one."
            )
        number = max(single, key=lambda each: float(scores[each]))
    return number_of_class(number, token_name(tokenizer, number))


def likeliest(tokenizer: PreTrainedTokenizerBase, scores: Tensor) -> dict[str, float]:
    """Return the tokens with the best scores, of (v,), with their probabilities, the likeliest first."""
    best = scores.softmax(-1).topk(min(_BEST, len(scores)))
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return {token_name(tokenizer, number): share for number, share in pairs}


def token_name(tokenizer: PreTrainedTokenizerBase, number: int) -> str:
    """Return a token as people read it; white space as Python writes it."""
    name = str(tokenizer.decode([number]))
    return name.strip() or repr(name)


def label_asked(names: Sequence[str], name: str) -> Target:
    """Return the log-odds and the probability of one of several labels that do not exclude each other."""
    check_choice("label", name, names)
    number = list(names).index(name)
    return Target(name, "log-odds", lambda logits: logits[:, number], lambda logits: logits[:, number].sigmoid())


def number_asked(own: str, name: str) -> Target:
    """Return the only number there is."""
    check_choice("number", name or own, [own])
    return Target(own, "units", lambda logits: logits[:, 0], lambda logits: logits[:, 0])


def place_of(at: float | None, labels: Sequence[str], what: str) -> int:
    """Number, from 0, of the prediction of a sequence that is explained; `at` counts from 1.

    By default it is the first one whose label is the rarest: words outside of names, say, are many.

    Raises:
        UserError: There is no such number.
    """
    if at is None:
        counts = Counter(labels)
        return min(range(len(labels)), key=lambda place: counts[labels[place]])
    return numbered(at, len(labels), what)


def numbered(at: float, count: int, what: str) -> int:
    """Return a number from 1 to `count` as one from 0. Raises UserError for any other."""
    if at != int(at) or not 1 <= at <= count:
        raise UserError(f"expected the number of {what}, from 1 to {count:,}, got {at:g}; choose one of these.")
    return int(at) - 1


def no_place(at: float | None) -> None:
    """Raise UserError if a place is named where predictions are of whole examples."""
    if at is not None:
        raise UserError(f"expected no place (at), as predictions are of whole examples, got {at:g}; leave it out.")


def texts_as_one(texts: Sequence[str], spans: Sequence[np.ndarray]) -> Places:
    """Return the places of several texts that are read apart, one below the other, as those of one text.

    Args:
        texts: The texts.
        spans: (t, 2) for each, the characters of its tokens, -1 for those that stand for none.
    """
    found, shift = [], 0
    for text, own in zip(texts, spans, strict=True):
        found.append(np.where(own < 0, own, own + shift))
        shift += len(text) + len(_BETWEEN)
    return Places("characters", np.concatenate(found), _BETWEEN.join(texts))


_BETWEEN = "\n\n"


@dataclass(frozen=True)
class Case:
    """A prediction to explain.

    Attributes:
        where: The place of the example, and of what is predicted within it.
        asked: Target of the explanation.
        question: The same as a function of positions.
        places: Positions of the example, as people see them.
        prediction: Prediction for the example, as JSON.
        removed: Number of positions of the example that were cut off.
        ids: The tokens (t,) whose n-grams the model counts, if it does, as a part of the sum that is explained.
        outputs: The model's outputs (1, ...) for the whole example, where they are known.
    """

    where: str
    asked: Target
    question: Question
    places: Places
    prediction: Mapping[str, Any]
    removed: int = 0
    ids: np.ndarray | None = None
    outputs: Tensor | None = None


def explained(case: Case, method: str, check: bool) -> Explanation:
    """Explain a prediction; see `longspan.explain`."""
    question, places, asked = case.question, case.places, case.asked
    logits = case.outputs
    if logits is None:
        with torch.no_grad():
            logits = question.logits().float().cpu()
    counted, ngrams = None, list[dict[str, Any]]()
    if case.ids is not None:
        counted, ngrams = _ngrams(question.model, case.ids, places, asked.value, logits)
    real, parts = question.real, dict[str, list[float]]()
    spans = _joined(places.spans, int(real.sum()))
    if method == "weight":
        # Once, as a look at all layers takes several forward passes.
        weights = list(question.weights())
        deep = scores = mean_weight(weights, real)
        parts = {name: row[real].tolist() for name, row in weight_rows(weights).items()}
    else:
        deep, scores = _scores(question, method, counted)
    if counted is not None and method in ("removal", "gradient"):
        parts = {"network": deep[real].tolist(), "n-grams": counted.tolist()}
    said = {name: value for name, value in case.prediction.items() if name != "where"}
    if case.removed:
        said |= {"tokens_read": len(places.spans), "tokens_total": len(places.spans) + case.removed}
    return Explanation(
        where=case.where,
        of=asked.name,
        unit=asked.unit,
        value=float(asked.value(logits)),
        method=method,
        prediction=said,
        text=places.text,
        places=places.unit,
        names=list(places.names),
        image=base64.b64encode(places.image).decode(),
        spans=spans.tolist(),
        scores=scores[real].tolist(),
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
    if counted is None or method in ("occlusion", "weight"):
        # Without a window, its n-grams are gone, too; and weights do not add up to anything.
        return deep, deep
    return deep, deep + pad_end(counted, (0, len(deep) - len(counted)))


def _checks(question: Question, method: str, scores: Tensor, counted: Tensor | None) -> dict[str, dict[str, float]]:
    """Deletion checks of the scores, of other methods' and of random ones."""
    found = {method: faithfulness(question, scores)}
    for other in METHODS:
        if other == method:
            continue
        try:
            found[other] = faithfulness(question, _scores(question, other, counted)[1])
        except UserError:
            # Some mixers have no weights.
            if other != "weight":
                raise
    found["random"] = by_chance(question)
    return {name: asdict(one) for name, one in found.items()}


def _ngrams(
    model: Any, ids: np.ndarray, places: Places, value: Callable[[Tensor], Tensor], logits: Tensor
) -> tuple[Tensor, list[dict[str, Any]]]:
    """Shares of each token's n-grams in the number that is explained, and the n-grams that add most."""
    found = model.wide.ngrams(torch.from_numpy(ids).long().to(model.device))
    at = logits.clone().requires_grad_()
    (slope,) = torch.autograd.grad(value(at).sum(), at)
    # Logits of numbers are in the unit of the data, and n-grams' shares are not.
    adds = (found.logits.cpu() @ slope[0]) * float(model.wide.scales[0]) * getattr(model.config.head, "target_scale", 1)
    begin, end, hashes, number = (each.cpu() for each in found[:4])
    shares, group = NgramShares(begin, end, hashes, number, adds.unsqueeze(1)), number.numpy()
    totals, known, named = np.bincount(group, adds.numpy()), np.flatnonzero(np.bincount(group)), []
    for which in known[np.argsort(-np.abs(totals[known]))][:_NGRAMS].tolist():
        begins, first = np.unique(begin.numpy()[group == which], return_index=True)
        last = int(end.numpy()[group == which][first[0]])
        start, stop = int(places.spans[begins[0]][0]), int(places.spans[last - 1][1])
        name = places.text[start:stop].strip() if 0 <= start < stop else ""
        if name:
            named.append({"text": name, "score": float(totals[which]), "times": len(begins)})
    return shares.of_tokens(len(ids))[:, 0], named
