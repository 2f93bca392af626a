"""Tasks whose examples are whole documents with one answer each: `DocumentTask`."""

from typing import ClassVar, Generic, TypeVar

from datasets import Dataset, concatenate_datasets
from transformers.tokenization_utils_base import VERY_LARGE_INTEGER

from longspan.data.config import DataConfig, UnlabelledData
from longspan.data.processor import Processor
from longspan.data.sources.loading import load
from longspan.data.text.processor import TextProcessor, tokenizer_of
from longspan.data.text.tokenization import encode
from longspan.results.scores import S
from longspan.tasks.base.corpora import text_column, unlabelled_texts
from longspan.tasks.base.examples import ExampleTask
from longspan.tasks.base.options import LengthTrainingOptions
from longspan.tasks.base.task import Facts, Run, length_facts

T = TypeVar("T", bound=DataConfig)


class DocumentTask(ExampleTask[S, T], Generic[S, T]):
    """Documents, each of which has one answer."""

    data_hint = (
        "data.path=FOLDER (a folder with one sub-folder per class, or a csv, tsv, jsonl or parquet file), or "
        "data.train=FILE"
    )
    example = "a document"
    program_answers = True
    #: The column of documents, among `columns`.
    text: ClassVar[str] = "text"
    facts: ClassVar[Facts] = length_facts("documents", "tokens")

    def learned(self, training: Dataset, data: T) -> Processor:
        if isinstance(data, UnlabelledData) and data.unlabelled and not data.tokenizer_from:
            own = unlabelled_texts(data)
            texts = [training, *load(own, text_column(own)).splits.values()]
            training = concatenate_datasets([rows.select_columns(self.text) for rows in texts])
        processor = TextProcessor.learned(training, data)
        # A pipeline, which reads documents whole unless told otherwise, then warns of longer ones.
        processor.tokenizer.model_max_length = data.max_length or VERY_LARGE_INTEGER
        if data.keep == "last":
            # Saved with the run, so that pipelines of transformers cut the same end.
            processor.tokenizer.truncation_side = "left"
            processor.tokenizer.init_kwargs["truncation_side"] = "left"
        return processor

    def token_rows(self, run: Run[T, LengthTrainingOptions], examples: Dataset) -> list[list[int]]:
        return encode(tokenizer_of(run.processor), examples[self.text][:], run.recipe.data)
