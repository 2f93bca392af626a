"""Training on windows with masked spans."""

from datasets import Dataset

from longspan.tasks.masked_spans.scores import SpanScores, span_scores
from longspan.tasks.target_trainer import PairTrainer


class SpanTrainer(PairTrainer[SpanScores]):
    """A `PairTrainer` of which the loss is the score."""

    def rehearse(self, dataset: Dataset) -> None:
        self.score(dataset)

    def score(self, dataset: Dataset) -> SpanScores:
        return span_scores(*self.loss_parts(dataset))
