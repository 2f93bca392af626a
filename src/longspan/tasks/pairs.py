"""Tasks with a source and a target, by an encoder and a decoder: `PairTask`."""

from typing import Any, ClassVar, Generic

from datasets import Dataset
from transformers import PreTrainedModel

from longspan.data.text.pairs import PairProcessor
from longspan.models import LongspanForSeq2SeqLM
from longspan.models.embeddings.tokens import TokenSettings
from longspan.models.limits import check_length
from longspan.results.scores import S
from longspan.tasks.base import D, O, Recipe, Run, Task
from longspan.tasks.counts import Counted
from longspan.tasks.prepared import Prepared
from longspan.tasks.target_search import pair_lengths


class PairTask(Task[S, D, O], Generic[S, D, O]):
    """A source and a target, by an encoder and a decoder.

    Splits that are ready for training have `input_ids` and `labels`, `length` and `target_length`.
    """

    model_class = LongspanForSeq2SeqLM
    processor: ClassVar[type[PairProcessor]] = PairProcessor
    embeddings = (TokenSettings,)
    unused = frozenset({"cross_mixers", "shared_vocabulary", "label_smoothing", "causal"})
    #: What source and target are called in messages.
    sides: ClassVar[tuple[str, str]] = ("a source", "a target")

    def build_model(self, recipe: Recipe[D, O], prepared: Prepared, counted: Counted | None = None) -> PreTrainedModel:
        model = super().build_model(recipe, prepared, counted)
        for rows in prepared.splits.values():
            self.check_lengths(model, rows, "leave it out")
        return model

    def check_lengths(self, model: PreTrainedModel, rows: Dataset, otherwise: str) -> None:
        """Raise UserError for sources and targets that are longer than the encoder's and the decoder's limits."""
        longest = pair_lengths(rows).max(0).tolist()
        source, target = self.sides
        check_length(model, longest[0], source, "set data.max_length={most}, or {longer}")
        check_length(model.get_decoder(), longest[1], target, f"set {{longer}}, or {otherwise}")


def reader_of(run: Run) -> PairProcessor:
    """Return the processor of a run of such a task."""
    assert isinstance(run.processor, PairProcessor)
    return run.processor


def settings_of(processor: PairProcessor) -> dict[str, Any]:
    """Return the settings of a model that depend on what makes its pairs."""
    end = processor.target_tokenizer.eos_token_id
    return {**processor.settings({}), "bos_token_id": end, "eos_token_id": end}
