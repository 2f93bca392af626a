"""Token classification: `TokenClassification`."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from datasets import Dataset, DatasetDict
from safetensors.numpy import save_file
from torch import Tensor
from transformers import PreTrainedModel, TrainingArguments

from longspan.data.columns.kinds import Column
from longspan.data.config import DataConfig
from longspan.data.fingerprints import fingerprint
from longspan.data.sources.formats.rows import Row
from longspan.data.sources.loading import Splits
from longspan.data.text.processor import TextProcessor
from longspan.data.text.tokenization import build_tokenizer, special_tokens
from longspan.data.text.words import WordEncoder, splitting
from longspan.errors import UserError
from longspan.models import LongspanConfig, LongspanForTokenClassification
from longspan.models.limits import limits
from longspan.models.parts.linear_chain import COUNTS_ALONE
from longspan.report import count, table
from longspan.report.card import Hub
from longspan.results import Evaluation
from longspan.results.mistakes import Mistakes
from longspan.results.outputs import write_text
from longspan.results.parts import BOTH
from longspan.tasks.base.case import Case
from longspan.tasks.base.classes import labels, scores_by_label
from longspan.tasks.base.engine import ModelInput, Pipeline, PipelineTask, check_outputs, predictions
from longspan.tasks.base.task import Facts, Prepared, Recipe, Run
from longspan.tasks.token_classification import combining, labelled_documents
from longspan.tasks.token_classification.examples import PER_TOKEN, Reader
from longspan.tasks.token_classification.explaining import word_case
from longspan.tasks.token_classification.options import TokenData, TrainingOptions
from longspan.tasks.token_classification.prediction import ANNOTATION_FORMATS, WordsPrediction, formats
from longspan.tasks.token_classification.program import FILE, Tagger
from longspan.tasks.token_classification.reading import RowWords, Split, columns
from longspan.tasks.token_classification.scores import TokenScores, token_scores
from longspan.tasks.token_classification.trainer import (
    READ,
    Sentence,
    TokenTrainer,
    by_parts,
    compared,
    labelled,
    parts_of,
    tags_of,
)
from longspan.training.lengths import ragged_outputs


@dataclass(frozen=True)
class Document:
    """The words of a document, and the windows in which they are labelled."""

    words: Split
    windows: list[dict[str, Any]]


#: Arrays of a chain in `longspan.tasks.token_classification.program`.
_CHAIN = ("transitions", "start", "end")
#: Labels of a document's words with their probabilities.
Labels = list[tuple[str, float]]


class WordPipeline(Pipeline[Document, Labels, TextProcessor]):
    """Documents, whose words have labels."""

    example = "words"

    def __init__(self, run: Run[TokenData, TrainingOptions, TextProcessor], options: Any) -> None:
        super().__init__(run, options)
        self.config, tokenizer = self.model.config, self.processor.tokenizer
        self.encoder = WordEncoder.of(tokenizer)
        self.words = RowWords(tokenizer.backend_tokenizer)
        self.reader = _run_reader(run)

    def problem(self, row: Row) -> str:
        # Words that came without a text need not be a document of the processor.
        return ""

    def preprocess(self, rows: Sequence[Row]) -> Iterator[ModelInput[Document] | str]:
        for row in rows:
            words = self.words(row)
            if words is None:
                yield "no words"
                continue
            facts = {"tokens": words.tokens, "sentences": words.sentences, "feature": row.values.get("feature")}
            yield ModelInput(Document(words, list(self.reader.windows(self.encoder, facts))))

    def forward(self, inputs: Sequence[ModelInput[Document]]) -> Iterator[Labels]:
        windows = [window for one in inputs for window in one.value.windows]
        sizes = [window["length"] for window in windows]
        how: dict[str, Any] = {"streams": {**self.processor.streams, **PER_TOKEN}}
        batches, classes = self.batches(sizes), self.config.num_labels
        tags = ragged_outputs(self.model, windows, batches, sizes, name="tags", dtype=torch.int64, **how)
        logits = ragged_outputs(self.model, windows, batches, sizes, name="logits", shape=(classes,), **how)
        check_outputs(logits)
        shares, start = logits.softmax(-1).gather(1, tags.unsqueeze(1)).squeeze(1), 0
        for one in inputs:
            labels: Labels = []
            for window in one.value.windows:
                places = [place for place, kept in enumerate(window["kept"], start) if kept]
                labels += ((self.config.id2label[int(tags[place])], float(shares[place])) for place in places)
                start += window["length"]
            yield labels

    def postprocess(self, row: Row, read: ModelInput[Document], output: Labels) -> WordsPrediction:
        names, shares = [name for name, _ in output], [share for _, share in output]
        plain = self.config.head.label_scheme == "plain"
        return WordsPrediction.of(row.where, row.values["tokens"], read.value.words, names, shares, plain)

    def encode(self, examples: Dataset, split: str) -> Dataset:
        labelled_documents.check_sentences(examples, self.data)
        splits = Splits(DatasetDict({split: examples}), {})
        loaded = labelled_documents.checked(splits, self.config.head.label_scheme, self.data)
        self.rows, self.skipped = loaded.splits[split], loaded.skipped
        return self.reader.tokens(self.rows, f"Tokenising {split}")

    def check_lengths(self, encoded: Dataset) -> None:
        """Do nothing: no window is longer than the model takes."""

    def outputs(self, encoded: Dataset) -> Tensor:
        sizes, read = encoded["length"][:], encoded.select_columns(READ).with_format("numpy")
        streams = {**self.processor.streams, **PER_TOKEN}
        compute = tags_of if self.model.wide is None else parts_of
        return compute(self.model, read, sizes, batches=self.batches(sizes), streams=streams, progress=True)

    def score(
        self, examples: Dataset, encoded: Dataset, outputs: Tensor, folder: Path
    ) -> tuple[TokenScores, dict[str, Any]]:
        names, details = labels(self.config), dict[str, Any]()
        if self.model.wide is None:
            sentences = labelled(encoded, outputs, names)
        else:
            words = combining.word_scores(self.model, encoded, outputs)
            plain = self.config.head.label_scheme == "plain"
            found = by_parts(self.model, encoded, words, names)
            sentences, details = found[BOTH], {"parts": compared(found, plain=plain).to_dict()}
        scores = _score([each.gold for each in sentences], [each.given for each in sentences], self.config)
        from longspan.report.confusion import confusion

        confusion(scores.confusion, scores.labels, folder / "confusion.png")
        worst = worst_words(sentences, self.rows)
        write_text(folder / "errors.txt", errors_text(worst))
        return scores, {
            "data_summary": _summary(encoded, self.rows),
            "unit": self.data.unit,
            "skipped_labels": self.skipped,
            "mistakes": worst,
            **details,
        }


class TokenClassification(PipelineTask[TokenScores, TokenData, TrainingOptions, TextProcessor]):
    """A label for each word of documents, of any length."""

    data_config = TokenData
    hub = Hub("token-classification", metrics=("accuracy", "f1"))
    pipeline_class = WordPipeline
    trainer_class = TokenTrainer
    training_options = TrainingOptions
    scores = TokenScores
    prediction = WordsPrediction
    cuts_examples = False
    model_class = LongspanForTokenClassification
    annotation_formats: ClassVar[Mapping[str, bool]] = ANNOTATION_FORMATS
    data_hint: ClassVar[str] = (
        "data.path=FILE (a file in columns such as CoNLL-U, a word per line, or a jsonl table with lists), or "
        "data.train=FILE"
    )

    facts: ClassVar[Facts] = {
        name: (name, count) for name in ("documents", "sentences", "words", "tokens", "longest", "windows")
    }

    # What is read

    def columns(self, data: TokenData) -> Sequence[Column]:
        return columns(data)

    def inputs(self, data: TokenData) -> Sequence[Column]:
        return [column for column in columns(data, raw=True) if not column.target]

    def prepare(self, recipe: Recipe[TokenData, TrainingOptions]) -> Prepared:
        data = recipe.data
        found = labelled_documents.read_documents(data)
        loaded, names = found.loaded, found.names
        training = loaded.splits["train"]
        words = [word for row in training["tokens"][:] for word in row]
        tokenizer = build_tokenizer(data, words, cache_key=fingerprint(training), splitting=splitting(words))
        features = sorted({value for row in training["feature"][:] for value in row}) if data.feature_column else []
        config = {
            "vocab_size": len(tokenizer),
            "pad_token_id": tokenizer.pad_token_id,
            "id2label": dict(enumerate(names)),
            "label2id": {name: number for number, name in enumerate(names)},
            "features": 1 + len(features) if features else 0,
            "feature_values": features or None,
            "label_scheme": found.scheme,
        }
        made = self.configure(recipe.model, config)
        reader = _reader(tokenizer, made, _limit(made, data))
        splits = {name: reader.tokens(split, f"Tokenising {name}") for name, split in loaded.splits.items()}
        table: dict[str, Any] = {name: _summary(split, loaded.splits[name]) for name, split in splits.items()}
        details = {"labels": names, "scheme": found.scheme}
        return Prepared(
            splits,
            TextProcessor(tokenizer),
            config,
            {**table, **loaded.notices()},
            details,
        )

    # What is trained

    def trainer_options(
        self,
        recipe: Recipe[TokenData, TrainingOptions],
        model: PreTrainedModel,
        arguments: TrainingArguments,
        prepared: Prepared[TextProcessor],
    ) -> dict[str, Any]:
        if model.config.head.crf and arguments.label_smoothing_factor:
            raise UserError(
                "expected no label smoothing with model.crf=true, which scores full sequences of labels, got "
                f"training.label_smoothing_factor={arguments.label_smoothing_factor}; leave one of them out."
            )
        return {
            "batch_tokens": recipe.options.batch_tokens,
            "streams": {**prepared.processor.streams, **PER_TOKEN},
            "names": labels(model.config),
            "plain": model.config.head.label_scheme == "plain",
            "measure": lambda gold, given: _score(gold, given, model.config),
        }

    # What a trained model does

    def case(self, run: Run, row: Row, of: str, at: float | None) -> Case:
        pipeline: WordPipeline = self.pipeline(run)
        (prediction,) = predictions(pipeline, [row])
        assert isinstance(prediction, WordsPrediction)
        return word_case(run, row, of, at, prediction, pipeline.reader)

    def formats(self) -> Mapping[str, Callable[[Any], str]]:
        return formats()

    def token_rows(self, run: Run, examples: Dataset) -> list[list[int]]:
        if run.model.config.causal:
            raise UserError(
                "expected a token classifier that reads both directions to export it as a program, got one with "
                "model.causal=true; use --format hub."
            )
        encoder, reader = WordEncoder.of(run.processor.tokenizer), _run_reader(run)
        return [window["input_ids"] for row in examples for window in reader.token_windows(encoder, row)]

    def write_answers(self, run: Run, folder: Path) -> dict[str, Any]:
        if "." in self.name:
            raise UserError(
                f"expected the task of longspan itself to export a token classifier as a program, got {self.name!r}, "
                "which may read and answer in ways of its own; use --format hub."
            )
        model, config, tokenizer = run.model, run.model.config, run.processor.tokenizer
        like, wide, words = torch.zeros(()), model.wide, model.words
        chain = model.chain(like) if wide is None else model.chained(like, wide.scales)
        arrays = dict(zip(_CHAIN, chain, strict=True)) | {"begins": model.begins}
        if wide is not None:
            alone = model.chained(like, torch.tensor(COUNTS_ALONE))
            arrays |= {f"wide_{name}": each for name, each in zip(_CHAIN, alone, strict=True)}
            arrays |= {name: getattr(wide, name) for name in ("keys", "weight", "scales", "lower", "kinds", "spelling")}
        if words is not None:
            arrays["spelling"] = words.spelling
        save_file({name: each.detach().cpu().contiguous().numpy() for name, each in arrays.items()}, folder / FILE)
        before, after = _special(tokenizer)
        unknown = tokenizer.unk_token_id
        return {
            "labels": labels(config),
            "plain": config.head.label_scheme == "plain",
            "crf": config.head.crf,
            "data": {name: getattr(run.recipe.data, name) for name in Tagger.reading},
            "limits": {limit.part: limit.tokens for limit in limits(model)},
            "before": before,
            "after": after,
            "unknown": -1 if unknown is None else unknown,
            "features": (config.head.feature_values or []) if config.head.features else [],
            "reach": 0 if words is None else words.neighbours,
            "feature_reach": 0 if words is None else words.feature_neighbours,
            "rows": 0 if words is None else words.table.num_embeddings,
        }

    # What is reported

    def sections(self, evaluation: Evaluation) -> list[str]:
        scores = evaluation.scores
        confused = ([str(label), str(given), count(float(number))] for label, given, number in scores.confused[:10])
        return [
            f"read by {evaluation.details['unit']}",
            *super().sections(evaluation),
            scores_by_label(scores.per_type, "label", "support"),
            table(["label", "taken for", "words"], confused),
        ]


def _score(gold: list[list[str]], given: list[list[str]], config: LongspanConfig) -> TokenScores:
    return token_scores(gold, given, labels(config), plain=config.head.label_scheme == "plain")


def _reader(tokenizer: Any, config: Any, limit: int) -> Reader:
    features = {value: number for number, value in enumerate(config.head.feature_values or [], 1)}
    numbers = {name: number for number, name in enumerate(labels(config))}
    return Reader(_special(tokenizer), limit, features, tokenizer, config.head.label_scheme, numbers)


def _run_reader(run: Run[TokenData, Any, TextProcessor]) -> Reader:
    config = run.model.config
    return _reader(run.processor.tokenizer, config, _limit(config, run.recipe.data))


def _special(tokenizer: Any) -> tuple[list[int], list[int]]:
    """Special tokens before and after a text."""
    before, after = (ids.tolist() for ids in special_tokens(tokenizer, 1))
    return before, after


def _limit(config: LongspanConfig, data: DataConfig) -> int:
    """Maximum number of tokens that are read at once; 0 for no limit."""
    with torch.device("meta"):
        model = LongspanForTokenClassification(config)
    return min([most for most in (data.max_length, *(limit.tokens for limit in limits(model))) if most], default=0)


def _summary(tokens: Dataset, rows: Dataset) -> dict[str, Any]:
    lengths = np.asarray(tokens["length"][:])
    return {
        "documents": len(rows),
        "sentences": sum(len(sizes or [0]) for sizes in rows["sentences"][:]),
        "words": sum(map(len, rows["tokens"][:])),
        "tokens": int(lengths.sum()),
        "longest": int(lengths.max(initial=0)),
        "windows": len(tokens),
    }


def worst_words(sentences: Sequence[Sentence], rows: Dataset) -> Mistakes:
    """Return the sentences with the most wrong labels; their texts have words with a wrong label in brackets."""
    errors = [sum(a != b for a, b in zip(each.gold, each.given, strict=True)) for each in sentences]

    def tell(number: int) -> dict[str, str]:
        sentence = sentences[number]
        row = rows[sentence.document]
        sizes = row["sentences"] or [len(row["tokens"])]
        start = sum(sizes[: sentence.number])
        words = row["tokens"][start : start + len(sentence.gold)]
        labels = list(zip(words, sentence.gold, sentence.given, strict=True))
        return {
            "where": f"{row['where']}, sentence {sentence.number + 1}" if len(sizes) > 1 else row["where"],
            "expected": " ".join(f"{word}/{gold}" for word, gold, given in labels if gold != given),
            "said": " ".join(f"{word}/{given}" for word, gold, given in labels if gold != given),
            "text": " ".join(word if gold == given else f"[{word}]" for word, gold, given in labels),
        }

    return Mistakes.ranked("wrong words", np.where(np.array(errors) > 0, errors, np.nan), tell)


def errors_text(found: Mistakes) -> str:
    """Return sentences with their errors for people."""
    told = (
        f"{one.where}: {one.score:.0f} wrong\n{one.text}\nright: {one.expected}\ngiven: {one.said}"
        for one in found.worst
    )
    return "\n\n".join(told) + "\n"
