"""Tasks with a text for each text, by an encoder and a decoder: `TargetTask`.

A subclass says what is read, how texts are scored and what a prediction contains.
"""

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import torch
from datasets import Dataset, Features, Value
from transformers import PreTrainedModel, TrainingArguments

from longspan.data.batches.by_length import padding_fraction
from longspan.data.batches.encoding import encoded, mapped_once
from longspan.data.columns.kept import Carried
from longspan.data.sources.loading import load
from longspan.data.text.pairs import PairProcessor
from longspan.errors import UserError
from longspan.machine.printing import note
from longspan.models import LongspanForSeq2SeqLM
from longspan.models.embeddings.tokens import TokenSettings
from longspan.models.limits import check_length, limits
from longspan.report import count, table
from longspan.results import Evaluation
from longspan.results.outputs import write_text
from longspan.results.scores import S
from longspan.tasks.base.engine import I, Pipeline, PipelineTask
from longspan.tasks.base.mistakes import Errors
from longspan.tasks.base.seq2seq.search import Search, pair_lengths, search
from longspan.tasks.base.seq2seq.trainer import DrawnPairs
from longspan.tasks.base.seq2seq.word_alignment import WordAligner
from longspan.tasks.base.task import Counted, D, O, Prepared, Recipe, Run
from longspan.training.arguments import data_seed
from longspan.training.lengths import scoring_batches


class PairTask(PipelineTask[S, D, O, PairProcessor], Generic[S, D, O]):
    """A source and a target, by an encoder and a decoder.

    Splits that are ready for training have `input_ids` and `labels`, `length` and `target_length`.
    """

    model_class = LongspanForSeq2SeqLM
    processor: ClassVar[type[PairProcessor]] = PairProcessor
    embeddings = (TokenSettings,)
    unused = frozenset({"cross_mixers", "shared_vocabulary", "label_smoothing", "causal"})
    #: Names of source and target in messages.
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


def settings_of(processor: PairProcessor) -> dict[str, Any]:
    """Return the settings of a model that depend on what makes its pairs."""
    end = processor.target_tokenizer.eos_token_id
    return {**processor.settings({}), "bos_token_id": end, "eos_token_id": end}


#: How results count training pairs that are longer than `data.max_length`.
TOO_LONG = "longer than data.max_length"
_SAMPLES = 8


@dataclass(frozen=True)
class Written:
    """Texts that a model writes for examples.

    Attributes:
        texts: The best text for each.
        losses: The nats of each reference, and its number of tokens, (n, 2).
        cut: Number of texts that never ended.
        padding: The share of padding in batches.
    """

    texts: list[str]
    losses: np.ndarray
    cut: int
    padding: float

    @property
    def loss(self) -> float:
        """Mean nats per token of the references."""
        return float(self.losses[:, 0].sum() / self.losses[:, 1].sum())


#: Processor of pairs.
R = TypeVar("R", bound=PairProcessor)


class TargetPipeline(Pipeline[I, list[dict[str, Any]], R], Generic[I, R]):
    """Examples for each of which the model writes a text.

    Attributes:
        how: How texts are searched for.
    """

    def __init__(self, run: Run[Any, Any, R], options: Any) -> None:
        super().__init__(run, options)
        self.how: Search = self.task.search_of(run, options)

    def encode(self, examples: Dataset, split: str) -> Dataset:
        rows: Dataset = self.task.encoded(examples, self.processor, self.data, split)
        return rows

    def check_lengths(self, encoded: Dataset) -> None:
        self.task.check_lengths(self.model, encoded, "score it without this example")

    def outputs(self, encoded: Dataset) -> Written:
        """Texts that the model writes for examples, and the losses of their references."""
        how, streams = self.how, self.processor.streams
        batches = scoring_batches(pair_lengths(encoded), how.batch_size, how.batch_tokens)
        with torch.inference_mode():
            labels = encoded["labels"][:]
            found = search(self.model, encoded["input_ids"][:], how, streams, references=labels, progress=True)
        longest = how.longest(encoded["length"][:], self.model).tolist()
        cut = sum(len(best[0]) >= most for best, most in zip(found.targets, longest, strict=True))
        texts = self.processor.texts([best[0] for best in found.targets])
        return Written(texts, found.references, cut, padding_fraction(batches, pair_lengths(encoded)))

    def score(self, examples: Dataset, encoded: Dataset, outputs: Written, folder: Path) -> tuple[Any, dict[str, Any]]:
        task, texts, references = self.task, outputs.texts, encoded["target"][:]
        rows, losses, (name, plural) = task.examples(examples), outputs.losses, task.text_names
        scores = task.score(encoded, texts, outputs.loss, True)
        write_text(folder / f"{plural}.txt", "".join(f"{text}\n" for text in texts))
        measure, worst = task.worst(texts, references)
        lowest = Errors(measure, worst, references.__getitem__, texts.__getitem__, lowest=True)
        samples = [
            {
                "where": rows[place]["where"],
                **task.sampled(rows[place]),
                "reference": references[place],
                name: texts[place],
                "loss": float(losses[place, 0] / losses[place, 1]),
            }
            for place in by_likelihood(losses)
        ]
        return scores, {
            "data_table": describe(encoded),
            "search": str(self.how),
            f"cut_{plural}": outputs.cut,
            "padding_fraction": outputs.padding,
            "samples": samples,
            "mistakes": lowest.among(rows, [task.source]),
        }


class TargetTask(PairTask[S, D, O], Generic[S, D, O]):
    """A text for each text, by an encoder and a decoder."""

    #: Names of a text that is written, and of several.
    text_names: ClassVar[tuple[str, str]]
    #: The column with the text that is read.
    source: ClassVar[str] = "source"
    #: The column with the reference.
    target: ClassVar[Carried] = Carried("target")
    #: Whether training leaves out pairs longer than `data.max_length`, rather than to cut their sources.
    leaves_out: ClassVar[bool] = False
    #: Maximum number of tokens of what is written, unless it is said how many; None for one that depends on the source.
    longest: ClassVar[int | None] = None
    #: Quantiles of the lengths of training targets that are tried as minimum length of what is written.
    least: ClassVar[Sequence[float]] = ()

    def search_of(self, run: Run[D, O, PairProcessor], options: Any) -> Search:
        """Search options of a trained model: its own minimum length, unless one is given."""
        how = self.search(run.recipe, options)
        if options.min_new_tokens is not None:
            return how
        least = run.model.generation_config.min_new_tokens or 0
        return replace(how, least=min(least, options.max_new_tokens or least))

    def search(self, recipe: Recipe[D, O], options: Any) -> Search:
        """Search options, given the `evaluation_options`."""
        training: Any = recipe.options
        return Search(
            beams=options.beams or training.beams,
            candidates=options.candidates,
            length_penalty=options.length_penalty,
            least=options.min_new_tokens or 0,
            most=options.max_new_tokens or self.longest,
            batch_size=recipe.training["per_device_eval_batch_size"],
            batch_tokens=training.batch_tokens,
        )

    @abc.abstractmethod
    def searched_examples(self, recipe: Recipe[D, O]) -> int:
        """Number of validation examples that are searched for during training."""

    @abc.abstractmethod
    def score(self, rows: Dataset, texts: Sequence[str], loss: float | None, intervals: bool) -> S:
        """Score texts of examples, as `TargetTask.encoded` returns them.

        Args:
            rows: The examples.
            texts: The text for each.
            loss: The loss of these examples, or of a split that they are from.
            intervals: Whether to compute intervals.
        """

    @abc.abstractmethod
    def worst(self, texts: Sequence[str], references: Sequence[str]) -> tuple[str, np.ndarray]:
        """Return a score's name, and the score of each text, by which the worst are found; NaN for right ones."""

    @abc.abstractmethod
    def sampled(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return what is shown of an example besides its texts."""

    @abc.abstractmethod
    def told(self, scores: S, search: str) -> list[str]:
        """Return the lines below the table of scores, given how texts were searched for."""

    def tables(self, details: Mapping[str, Any]) -> list[str]:
        """Return further tables, from the details of an evaluation: by default none."""
        return []

    def bpe_dropout(self, recipe: Recipe[D, O]) -> float:
        """Return the share of merges that training leaves out at random: by default none."""
        return 0.0

    def shared_vocabulary(self, recipe: Recipe[D, O]) -> bool:
        """Return whether source and target share their tokens: by default they do."""
        return True

    def examples(self, rows: Dataset) -> Dataset:
        """Return one row for each target, from rows that are read: by default, the same."""
        return rows

    # The rest is the same for all of them.

    def prepare(self, recipe: Recipe[D, O]) -> Prepared:
        data: Any = recipe.data
        if recipe.model.get("copy") and not self.shared_vocabulary(recipe):
            raise UserError(
                "expected one vocabulary of source and target to copy tokens of the source, got model.copy=true and "
                "data.shared_vocabulary=false; set one or the other."
            )
        loaded = load(data, self.columns(data))
        processor = self.processor.learned(loaded.splits["train"], data)
        splits = {
            name: self.encoded(split, processor, data, name, drawn=name == "train" and self.bpe_dropout(recipe) > 0)
            for name, split in loaded.splits.items()
        }
        told = loaded.notices()
        if self.leaves_out and data.max_length:
            splits["train"], left_out = _short_enough(splits["train"], data.max_length)
            if left_out:
                note(f"left out {left_out:,} training pairs longer than {data.max_length:,} tokens (data.max_length)")
                told["skipped"] = {**told["skipped"], TOO_LONG: left_out}
        data_of = {name: describe(rows) for name, rows in splits.items()} | told
        return Prepared(splits, processor, settings_of(processor), data_of)

    def trainer_options(
        self,
        recipe: Recipe[D, O],
        model: PreTrainedModel,
        arguments: TrainingArguments,
        prepared: Prepared[PairProcessor],
    ) -> dict[str, Any]:
        options: Any = recipe.options
        drawn, rate = None, self.bpe_dropout(recipe)
        if rate:
            data: Any = recipe.data
            most = _most_tokens(model, data.max_length)
            drawn = DrawnPairs(prepared.splits["train"], prepared.processor, rate, data_seed(arguments), most)
        return {
            "batch_tokens": options.batch_tokens,
            "streams": prepared.processor.streams,
            "reader": prepared.processor,
            "how": self.search(recipe, self.evaluation_options()),
            "searched_examples": self.searched_examples(recipe),
            "least": self.least,
            "scored": self.score,
            "drawn": drawn,
        }

    def encoded(
        self, examples: Dataset, processor: PairProcessor, data: D, name: str, *, drawn: bool = False
    ) -> Dataset:
        """Return examples as streams, with their `length`, `removed`, `target_length` and `target`, the text.

        With `drawn`, they also have `source`, the text, to draw other tokens of it.
        """
        keep = {"target": self.target, **self.score_columns(), **({"source": Carried("source")} if drawn else {})}
        rows = encoded(self.examples(examples), processor, data, f"{processor.work} {name}", keep=keep)
        features = Features({**rows.features, "target_length": Value("int32")})

        def measured(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
            return {**batch, "target_length": [len(labels) for labels in batch["labels"]]}

        return mapped_once(rows, measured, features, ["target lengths"], f"Measuring {name}")

    def score_columns(self) -> Mapping[str, Carried]:
        """Return further columns of the examples that `score` reads."""
        return {}

    def data_table(self, data: Mapping[str, Any], style: str = "simple") -> str:
        return data_table(data, style)

    def sections(self, evaluation: Evaluation) -> list[str]:
        scores, details, plural = evaluation.scores, evaluation.details, self.text_names[1]
        told, cut = self.told(scores, details["search"]), details[f"cut_{plural}"]
        if cut:
            told.append(f"{count(cut)} of {count(scores.examples)} {plural} never ended, and were cut.")
        parts = [
            *super().sections(evaluation),
            "\n".join(told),
            *self.tables(details),
            "From the likeliest reference to the least likely one:\n",
        ]
        for row in details["samples"]:
            texts = {key: text for key, text in row.items() if key not in ("where", "loss")}
            width = 1 + max(map(len, texts))
            shown = (f"\n  {key + ':':{width}} {text}" for key, text in texts.items() if text is not None)
            parts[-1] += f"\n{row['where']} ({row['loss']:.2f} nats per token)" + "".join(shown)
        return parts

    def evaluation_report(self, evaluation: Evaluation) -> str:
        plural = self.text_names[1]
        return f"{super().evaluation_report(evaluation)} ({plural}.txt has all {plural})"


def answers(
    run: Run, sources: list[list[int]], how: Search, name: str, words: Sequence[Sequence[int]] | None = None
) -> list[list[dict[str, Any]]]:
    """Return the best texts for each source with their scores, as JSON.

    Args:
        run: The trained model.
        sources: Token ids, each read once.
        how: How texts are searched for.
        name: Name of a text in the result.
        words: For each source the number of the word of each of its tokens, -1 for none. Texts then have an
            `alignment` of their words with those of the source.

    Raises:
        UserError: There are alignments to make, and no weights to make them of.
    """
    reader = run.processor
    aligner = None if words is None else WordAligner(reader.target_tokenizer, words)
    found = search(run.model, sources, how, reader.streams, scored=True, link=aligner)
    longest = how.longest([len(source) for source in sources], run.model).tolist()
    texts = iter(reader.texts([ids for best in found.targets for ids in best]))
    result = []
    for row, (best, losses, most) in enumerate(zip(found.targets, found.losses.tolist(), longest, strict=True)):
        made = []
        for place, (ids, (nats, tokens)) in enumerate(zip(best, losses, strict=True)):
            one: dict[str, Any] = {name: next(texts), "score": round(-nats / tokens, 6)}
            if aligner is not None:
                one["alignment"] = aligner.pairs(ids, found.links[row][place])
            made.append({**one, "cut": True} if len(ids) >= most else one)
        result.append(made)
    return result


def describe(rows: Dataset) -> dict[str, Any]:
    """Facts about the pairs of a split for the results."""
    lengths, removed = pair_lengths(rows), np.asarray(rows["removed"][:])
    return {
        "pairs": len(rows),
        "tokens": lengths.sum(0).tolist(),
        "median_length": np.median(lengths, 0).tolist(),
        "longest": lengths.max(0).tolist(),
        "cut_sources": int((removed > 0).sum()),
    }


def data_table(data: Mapping[str, Any], style: str = "simple") -> str:
    """Return the table of splits: pairs, and the tokens of sources and targets."""
    sides = ("source", "target")
    headers = ["split", "pairs", *(f"{side} tokens" for side in sides), *(f"median {side}" for side in sides)]
    headers += [*(f"longest {side}" for side in sides), "cut sources"]
    rows = [
        [
            name,
            count(row["pairs"]),
            *(count(value) for key in ("tokens", "median_length", "longest") for value in row[key]),
            count(row["cut_sources"]),
        ]
        for name, row in data.items()
        if isinstance(row, Mapping) and "pairs" in row
    ]
    return table(headers, rows, style)


def by_likelihood(losses: np.ndarray) -> list[int]:
    """Return some rows of losses and tokens, (n, 2), from the likeliest reference to the least likely one."""
    order = np.argsort(losses[:, 0] / losses[:, 1], kind="stable")
    found: list[int] = order[np.linspace(0, len(order) - 1, min(_SAMPLES, len(order))).round().astype(int)].tolist()
    return found


def _most_tokens(model: PreTrainedModel, max_length: int) -> list[int | None]:
    """Return the maximum number of tokens of sources and of targets, None for any, given `data.max_length`."""
    given = [max_length] if max_length else []
    return [
        min([*given, *(limit.tokens for limit in limits(part))], default=None) for part in (model, model.get_decoder())
    ]


def _short_enough(rows: Dataset, most: int) -> tuple[Dataset, int]:
    """Return the pairs of at most that many tokens on each side, and how many others there are."""
    removed = np.asarray(rows["removed"][:]) > 0
    good = np.flatnonzero(~removed & (np.asarray(rows["target_length"][:]) <= most))
    if not len(good):
        raise UserError(
            f"expected training pairs of at most data.max_length={most} tokens, got only longer ones; raise it."
        )
    return rows.select(good), len(rows) - len(good)
