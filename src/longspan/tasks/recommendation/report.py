"""Results of recommendation: tables, users with what they clicked and were shown, and what the model card says."""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from datasets import Dataset

from longspan.models import LongspanForRecommendation
from longspan.results import Evaluation
from longspan.results.mistakes import Mistakes
from longspan.tasks.recommendation.ranking import ItemVectors
from longspan.tasks.recommendation.samples import Impressions, collate
from longspan.tasks.recommendation.scores import RecommendationScores

#: Users who are shown in a report, clicks that are, and candidates.
_USERS, _CLICKS, _CANDIDATES = 10, 8, 10


def told_of(evaluation: Evaluation[RecommendationScores]) -> str:
    """Return what an evaluation's scores are of."""
    scores = evaluation.scores
    low, high = evaluation.details["auc_interval"]
    told = (
        f"AUC, MRR and nDCG are means over {scores.groups:,} {scores.grouped_by}s. They exclude {scores.left_out:,} "
        f"others, with all or no candidates clicked. 95 % bootstrap interval of the AUC: {low:.4f} to {high:.4f}."
    )
    if unlabelled := evaluation.details["unlabelled"]:
        told += f" Impressions without labels, which are left out: {unlabelled:,}."
    if evaluation.details["data_summary"]["unknown_clicked"]:
        told += " Unknown candidates that were clicked are not ranked, so the scores do not count them."
    return told


def left_out(skipped: Mapping[str, int]) -> str:
    """Return a sentence on what was left out while reading, of all splits together."""
    return f"Left out while reading: {'; '.join(f'{reason}: {number:,}' for reason, number in skipped.items())}."


def mistakes(impressions: Impressions, logits: np.ndarray, catalogue: Dataset, rows: Dataset) -> Mistakes:
    """Return the impressions whose clicked items rank lowest: the share of other candidates before the last of them.

    Args:
        impressions: Impressions shown to users.
        logits: Scores of all candidates.
        catalogue: The items.
        rows: The same impressions, with their places.
    """
    scores, items = [], []
    for start, end in pairwise(impressions.candidates.offsets.tolist()):
        clicked, own = impressions.clicked[start:end] == 1, logits[start:end]
        if clicked.all() or not clicked.any():
            scores.append(np.nan)
            items.append((-1, -1))
            continue
        last = int(np.where(clicked, own, np.inf).argmin())
        before = float((own[~clicked] > own[last]).mean())
        scores.append(before or np.nan)
        candidates = impressions.candidates.values[start:end]
        items.append((int(candidates[last]), int(candidates[own.argmax()])))

    def tell(row: int) -> dict[str, str]:
        clicked, first = (catalogue[item]["title"] or catalogue[item]["item"] for item in items[row])
        return {"where": rows[row]["where"], "expected": clicked, "said": first, "text": f"user {rows[row]['user']}"}

    return Mistakes.ranked("share of other candidates ranked before the clicked one", scores, tell)


@torch.no_grad()
def shown_to_users(
    model: LongspanForRecommendation,
    impressions: Impressions,
    vectors: ItemVectors,
    logits: np.ndarray,
    catalogue: Dataset,
    rows: Dataset,
) -> str:
    """Return, for some users, which clicks weighed most, and how what they were shown was ranked.

    Args:
        model: The model, in evaluation mode.
        impressions: Impressions shown to them.
        vectors: Those of the catalogue.
        logits: Scores of all candidates.
        catalogue: The items.
        rows: The same impressions, with their identifiers.
    """
    mixed = [row for row in range(len(impressions)) if len({*impressions[row].labels.tolist()}) > 1]
    chosen = mixed or list(range(len(impressions)))
    step = max(1, len(chosen) // _USERS)
    parts = []
    for row in chosen[::step][:_USERS]:
        shown = impressions[row]
        inputs, numbers = collate([shown], None)
        inputs = {name: tensor.to(model.device) for name, tensor in inputs.items() if name != "labels"}
        if model.wide is not None:
            inputs |= {name: tensor.to(model.device) for name, tensor in vectors.items.counted(numbers).items()}
        weights = model(**inputs, news_vectors=vectors[numbers]).history_weights
        start = impressions.candidates.offsets[row]
        own = logits[start : start + len(shown.candidates)]
        known = rows[row]
        title = f"user {known['user']}" + (f", impression {known['impression']}" if known["impression"] else "")
        parts.append("\n".join([title, *_clicks(shown.history, weights, catalogue), *_ranked(shown, own, catalogue)]))
    return "\n\n".join(parts) + "\n"


def _clicks(history: np.ndarray, weights: torch.Tensor | None, catalogue: Dataset) -> Iterator[str]:
    if not len(history):
        yield "  clicked nothing before"
        return
    if weights is None:
        yield f"  clicked before, the newest first ({len(history):,}):"
        order = np.arange(len(history))[::-1]
        told = ["" for _ in history]
    else:
        yield f"  clicked before, what weighs most first ({len(history):,}):"
        share = weights[0, : len(history)].float().cpu().numpy()
        order = np.argsort(-share, kind="stable")
        told = [f"{each:6.1%}  " for each in share]
    for place in order[:_CLICKS]:
        yield f"    {told[place]}{catalogue[int(history[place])]['title']}"


def _ranked(shown: Any, logits: np.ndarray, catalogue: Dataset) -> Iterator[str]:
    yield "  was shown, ranked, what was clicked with a star:"
    order = np.argsort(-logits, kind="stable")
    for rank, place in enumerate(order[:_CANDIDATES], 1):
        star = "*" if shown.labels[place] == 1 else " "
        yield f"    {rank:3} {star} {logits[place]:8.3f}  {catalogue[int(shown.candidates[place])]['title']}"
