"""Training of models that answer questions: `AnswerTrainer`."""

from collections.abc import Sequence

from datasets import Dataset
from torch import Tensor

from longspan.data.batches.streams import Stream
from longspan.tasks.question_answering import answers
from longspan.tasks.question_answering.scores import AnswerScores, answer_scores, best_threshold
from longspan.training.lengths import LengthTrainer, ragged_outputs, scoring_batches, targets

#: What models read in addition to the ids of tokens, and what stands at padding.
PER_TOKEN = {"token_type_ids": Stream()}
#: Their outputs.
LOGITS = ("start_logits", "end_logits")


class AnswerTrainer(LengthTrainer[AnswerScores]):
    """A `LengthTrainer` whose scores are those of answers' texts.

    Where the data have questions without an answer, the threshold is chosen whenever the validation split is scored,
    so before a checkpoint is saved. No other split changes it.
    """

    def score(self, dataset: Dataset) -> AnswerScores:
        logits, config = self.outputs(dataset), self.model.config
        found = list(answers.answered(dataset, logits, config.head.longest_answer))
        expected = [one.expected for one in found]
        if dataset is self.eval_dataset and config.head.answer_threshold is not None:
            best = [one.answer(None) for one in found]
            config.head.answer_threshold = best_threshold([one.score for one in found], best, expected)
        given = [one.answer(config.head.answer_threshold) for one in found]
        loss = answers.loss(logits, dataset["length"][:], targets(dataset))
        return answer_scores(given, expected, loss=loss, threshold=config.head.answer_threshold)

    def validation_scores(self) -> AnswerScores:
        scores = super().validation_scores()
        # That of the epoch that was kept, whose weights came back without it.
        self.model.config.head.answer_threshold = scores.threshold
        return scores

    def outputs(self, dataset: Dataset, name: str | Sequence[str] = LOGITS) -> Tensor:
        """Return the model's outputs for all tokens of a data set, (sum of lengths, 2)."""
        lengths = dataset["length"][:]
        return ragged_outputs(
            self.model,
            self.rows(dataset, ["input_ids", *PER_TOKEN]),
            scoring_batches(lengths, self.args.eval_batch_size, self.batch_tokens),
            lengths,
            name=name,
            streams=self.streams,
            shape=() if isinstance(name, str) else (len(name),),
            progress=not self.args.disable_tqdm and self.is_world_process_zero(),
            after_batch=self._scored_a_batch,
        )
