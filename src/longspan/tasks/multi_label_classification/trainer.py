"""Training of multi-label classifiers, whose thresholds come from the validation split."""

from datasets import Dataset

from longspan.tasks.multi_label_classification.scores import MultiLabelScores, best_thresholds
from longspan.training.lengths import LengthTrainer, targets


class ThresholdTrainer(LengthTrainer[MultiLabelScores]):
    """A `LengthTrainer` that chooses the thresholds of a model whenever it scores the validation split.

    They are chosen before a checkpoint is saved, so each one has its own. No other split changes them.
    """

    def score(self, dataset: Dataset) -> MultiLabelScores:
        if dataset is not self.eval_dataset:
            return super().score(dataset)
        logits, wanted = self.outputs(dataset), targets(dataset)
        self.model.config.head.thresholds = best_thresholds(logits, wanted)
        return self.measure(logits, wanted)

    def validation_scores(self) -> MultiLabelScores:
        scores = super().validation_scores()
        # Those of the epoch that was kept, whose weights came back without them.
        self.model.config.head.thresholds = [row["threshold"] for row in scores.per_label.values()]
        return scores
