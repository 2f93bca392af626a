"""BM25 averaged over neighbours."""

from typing import ClassVar

from transformers import PreTrainedModel

from longspan.models.heads.evidence import LongspanForEvidence
from longspan.tasks.base.task import Counted, Counts, Prepared, Recipe
from longspan.tasks.evidence.baselines.bm25 import Bm25
from longspan.tasks.evidence.scores import EvidenceScores


class Bm25Smoothed(Bm25, Counts[EvidenceScores]):
    """BM25, averaged over neighbouring parts by a Gaussian whose width validation chooses.

    Models contain it with `model.wide`: over their own tokens, with stop words, and with the width `FIRST_SPREAD`.
    Their layers over parts read it, too, with weights of words that training changes (`LexicalMatch`).
    """

    spreads: ClassVar[tuple[float, ...]] = (1.0, 2.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0)

    def count(self, recipe: Recipe, prepared: Prepared) -> Counted:
        # Each document has its own counts: nothing is fitted to the training split.
        return Counted({"lexical_match": True}, _set_bm25_weights)


def _set_bm25_weights(model: PreTrainedModel) -> None:
    """Let a model rank parts as BM25 does."""
    assert isinstance(model, LongspanForEvidence)
    assert model.match is not None
    model.match.reset_parameters()
