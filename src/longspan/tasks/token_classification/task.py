"""Token classification: `TokenClassification`."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from datasets import Dataset, DatasetDict
from transformers import PreTrainedModel, TrainingArguments

from longspan.data.columns.kinds import Column
from longspan.data.config import DataConfig
from longspan.data.sources.formats.rows import Row
from longspan.data.sources.loading import Splits
from longspan.data.text.processor import TextProcessor, tokenizer_of
from longspan.data.text.tokenization import build_tokenizer
from longspan.data.text.words import WordEncoder, splitting
from longspan.errors import UserError
from longspan.models import LongspanConfig, LongspanForTokenClassification
from longspan.models.limits import limits
from longspan.report import count, table
from longspan.report.card import CardParts
from longspan.results import Evaluation, Prediction, TrainingResult
from longspan.results.outputs import write_text
from longspan.tasks.base.case import Case
from longspan.tasks.base.engine import windows
from longspan.tasks.base.task import Baseline, Counts, Prepared, Recipe, Run, Task, baselines_in
from longspan.tasks.token_classification import baselines, combining, labelled_documents, report
from longspan.tasks.token_classification.examples import PER_TOKEN, Reader
from longspan.tasks.token_classification.explaining import word_label
from longspan.tasks.token_classification.options import TokenData, TrainingOptions
from longspan.tasks.token_classification.prediction import WordsPrediction, joined, spans_of, split_text
from longspan.tasks.token_classification.scores import TokenScores, token_scores
from longspan.tasks.token_classification.trainer import (
    READ,
    TokenTrainer,
    in_parts,
    labelled,
    parts_of,
    tags_of,
)
from longspan.training.lengths import ragged_outputs, scoring_batches


class TokenClassification(Task[TokenScores, TokenData, TrainingOptions]):
    """A label for each word of documents, of any length."""

    data_config = TokenData
    training_options = TrainingOptions
    scores = TokenScores
    prediction = WordsPrediction
    cuts_examples = False
    model_class = LongspanForTokenClassification
    data_hint: ClassVar[str] = (
        "data.path=FILE (a file in columns such as CoNLL-U, a word per line, or a jsonl table with lists), or "
        "data.train=FILE"
    )

    # What is read

    def columns(self, data: TokenData) -> Sequence[Column]:
        return labelled_documents.columns(data)

    def inputs(self, data: TokenData) -> Sequence[Column]:
        return [column for column in labelled_documents.columns(data, raw=True) if not column.target]

    def prepare(self, recipe: Recipe[TokenData, TrainingOptions]) -> Prepared:
        data = recipe.data
        found = labelled_documents.read(data)
        loaded, names = found.loaded, found.names
        training = loaded.splits["train"]
        words = [word for row in training["tokens"][:] for word in row]
        tokenizer = build_tokenizer(data, words, cache_key=training._fingerprint, splitting=splitting(words))
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

    def make_trainer(
        self,
        recipe: Recipe[TokenData, TrainingOptions],
        model: PreTrainedModel,
        arguments: TrainingArguments,
        prepared: Prepared,
    ) -> TokenTrainer:
        if model.config.head.crf and arguments.label_smoothing_factor:
            raise UserError(
                "expected no label smoothing with model.crf=true, which scores full sequences of labels, got "
                f"training.label_smoothing_factor={arguments.label_smoothing_factor}; leave one of them out."
            )
        return TokenTrainer(
            model,
            arguments,
            train_dataset=prepared.splits["train"],
            eval_dataset=prepared.splits["validation"],
            batch_tokens=recipe.options.batch_tokens,
            streams={**prepared.processor.streams, **PER_TOKEN},
            names=_names(model.config),
            plain=model.config.head.label_scheme == "plain",
            measure=lambda gold, given: _score(gold, given, model.config),
        )

    # What a trained model does

    def evaluate(
        self, run: Run[TokenData, TrainingOptions], examples: Dataset, split: str, options: Any, folder: Path
    ) -> tuple[TokenScores, dict[str, Any]]:
        config, data = run.model.config, run.recipe.data
        loaded = labelled_documents.checked(Splits(DatasetDict({split: examples}), {}), config.head.label_scheme, data)
        rows = loaded.splits[split]
        tokens = _reader(tokenizer_of(run.processor), config, _limit(config, data)).tokens(rows, f"Tokenising {split}")
        lengths, read = tokens["length"][:], tokens.select_columns(READ).with_format("numpy")
        options_read: dict[str, Any] = {"streams": {**run.processor.streams, **PER_TOKEN}, "progress": True}
        details: dict[str, Any] = {}
        if run.model.wide is None:
            given = tags_of(run.model, read, lengths, _batches(run, lengths), **options_read)
            sentences = labelled(tokens, given, _names(config))
        else:
            outputs = parts_of(run.model, read, lengths, _batches(run, lengths), **options_read)
            words = combining.said(run.model, tokens, outputs)
            plain = config.head.label_scheme == "plain"
            sentences, compared = in_parts(run.model, tokens, words, _names(config), plain=plain)
            details = {"parts": compared().to_dict()}
        scores = _score([each.gold for each in sentences], [each.given for each in sentences], config)
        from longspan.report.confusion import confusion

        confusion(scores.confusion, scores.labels, folder / "confusion.png")
        worst = report.mistakes(sentences, rows)
        write_text(folder / "errors.txt", report.errors_text(worst))
        return scores, {
            "data_summary": _summary(tokens, rows),
            "unit": data.unit,
            "skipped_labels": loaded.skipped,
            "mistakes": worst,
            **details,
        }

    def predict(self, run: Run, rows: Iterable[Row]) -> Iterator[Prediction]:
        encoder = WordEncoder(tokenizer_of(run.processor))
        config, data = run.model.config, run.recipe.data
        reader = _reader(tokenizer_of(run.processor), config, _limit(config, data))
        for window in windows(rows):
            yield from self._labelled(run, reader, encoder, window)

    def _labelled(self, run: Run, reader: Reader, encoder: WordEncoder, window: Sequence[Row]) -> Iterator[Prediction]:
        config = run.model.config
        found: list[Any] = []
        examples: list[dict[str, Any]] = []
        for number, row in enumerate(window):
            given = row.values.get("tokens")
            words = split_text(tokenizer_of(run.processor), given) if isinstance(given, str) else None
            if words is None and isinstance(given, list):
                words = joined(given, row.values.get("sentences"))
            problem = row.problem or ("" if words is not None and words.tokens else "no words")
            found.append(problem or words)
            if words is not None and not problem:
                facts = {"tokens": words.tokens, "sentences": words.sentences, "feature": row.values.get("feature")}
                examples += [{**example, "document": number} for example in reader.windows(encoder, facts)]
        tags, scores = _outputs(run, examples)
        labels: dict[int, list[tuple[str, float]]] = {}
        start = 0
        for example in examples:
            end = start + example["length"]
            own = [place for place, kept in enumerate(example["kept"], start) if kept]
            labels.setdefault(example["document"], []).extend(
                (config.id2label[int(tags[place])], round(float(scores[place]), 4)) for place in own
            )
            start = end
        for number, (row, words) in enumerate(zip(window, found, strict=True)):
            if isinstance(words, str):
                yield WordsPrediction(row.where, words)
                continue
            names, shares = (list(column) for column in zip(*labels[number], strict=True))
            text = row.values["tokens"] if isinstance(row.values["tokens"], str) else None
            spans = None if config.head.label_scheme == "plain" else spans_of(words, names, shares, text)
            yield WordsPrediction(row.where, None, words.tokens, names, shares, words.offsets, words.sentences, spans)

    def case(self, run: Run, row: Row, of: str, at: float | None) -> Case:
        config, tokenizer = run.model.config, tokenizer_of(run.processor)
        (prediction,) = self.predict(run, [row])
        assert isinstance(prediction, WordsPrediction)
        return word_label(run, row, of, at, prediction, _reader(tokenizer, config, _limit(config, run.recipe.data)))

    def formats(self) -> Mapping[str, Callable[[Any], str]]:
        return {"conll": WordsPrediction.to_columns}

    def token_rows(self, run: Run, examples: Dataset) -> list[list[int]]:
        raise UserError(
            f"expected a model whose sizes follow from the number of tokens to export it as a program, got "
            f"{str(run.folder)!r}, which puts words and sentences together; use --format hub."
        )

    # What is reported

    def baselines(self) -> Mapping[str, type[Baseline[TokenScores]]]:
        return baselines_in(baselines)

    def counts(self) -> type[Counts[TokenScores]]:
        found = self.baselines()["crf"]
        assert issubclass(found, Counts)
        return found

    def data_table(self, data: Mapping[str, Any], style: str = "simple") -> str:
        splits = {name: row for name, row in data.items() if "words" in row}
        keys = ("documents", "sentences", "words", "tokens", "longest", "windows")
        rows = ([name, *(count(row[key]) for key in keys)] for name, row in splits.items())
        return table(["split", "documents", "sentences", "words", "tokens", "longest", "windows"], rows, style)

    def evaluation_report(self, evaluation: Evaluation) -> str:
        return report.evaluation_report(self, evaluation)

    def card_parts(self, recipe: Recipe, result: TrainingResult) -> CardParts:
        return report.card_parts(recipe, result)


def _names(config: LongspanConfig) -> list[str]:
    """Return the labels, in the order of the model's outputs."""
    return [config.id2label[number] for number in range(config.num_labels)]


def _score(gold: list[list[str]], given: list[list[str]], config: LongspanConfig) -> TokenScores:
    return token_scores(gold, given, _names(config), plain=config.head.label_scheme == "plain")


def _reader(tokenizer: Any, config: Any, limit: int) -> Reader:
    features = {value: number for number, value in enumerate(config.head.feature_values or [], 1)}
    labels = {name: number for number, name in enumerate(_names(config))}
    return Reader(tokenizer, limit, config.head.label_scheme, labels, features)


def _limit(config: LongspanConfig, data: DataConfig) -> int:
    """Return how many tokens are read at once at most; 0 for no limit."""
    with torch.device("meta"):
        model = LongspanForTokenClassification(config)
    return min([most for most in (data.max_length, *(limit.tokens for limit in limits(model))) if most], default=0)


def _batches(run: Run[TokenData, TrainingOptions], lengths: Sequence[int]) -> list[list[int]]:
    return scoring_batches(lengths, run.recipe.training["per_device_eval_batch_size"], run.recipe.options.batch_tokens)


def _outputs(run: Run, examples: list[dict[str, Any]]) -> tuple[Any, Any]:
    """Return the numbers of the labels of all tokens of examples, and their probabilities."""
    lengths = [example["length"] for example in examples]
    options: dict[str, Any] = {"streams": {**run.processor.streams, **PER_TOKEN}}
    batches = _batches(run, lengths)
    tags = ragged_outputs(run.model, examples, batches, lengths, name="tags", dtype=torch.int64, **options)
    logits = ragged_outputs(
        run.model, examples, batches, lengths, name="logits", shape=(run.model.config.num_labels,), **options
    )
    return tags, logits.softmax(-1).gather(1, tags.unsqueeze(1)).squeeze(1)


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
