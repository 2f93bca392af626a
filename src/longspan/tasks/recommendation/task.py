"""Recommending items, such as news: `Recommendation`."""

import dataclasses
import typing
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from datasets import Dataset
from transformers import PreTrainedModel, TrainingArguments

from longspan.data.columns.kinds import Column
from longspan.data.processor import json_object
from longspan.data.sources.announcements import note
from longspan.data.sources.formats.rows import Row
from longspan.data.sources.in_memory import settings_for
from longspan.data.sources.loading import Splits
from longspan.data.text.processor import TextProcessor, tokenizer_of
from longspan.errors import UserError
from longspan.errors.hints import matches
from longspan.models import LongspanConfig, LongspanForRecommendation
from longspan.models.limits import check_length
from longspan.report import count, share, table
from longspan.report.card import CardParts
from longspan.results import Evaluation, TrainingResult
from longspan.results.outputs import write_json, write_text
from longspan.tasks.base.case import Case, no_place
from longspan.tasks.base.task import Baseline, Counted, Prepared, Recipe, Run, Task, baselines_in
from longspan.tasks.recommendation import baselines, report
from longspan.tasks.recommendation.baselines.counts import Counts
from longspan.tasks.recommendation.columns import impression_columns
from longspan.tasks.recommendation.counting import aucs_of_parts, combined, compared
from longspan.tasks.recommendation.entities import read_entity_vectors
from longspan.tasks.recommendation.explaining import ranked_item
from longspan.tasks.recommendation.items import Items, Names, PreparedItems, read_by, title_tokenizer
from longspan.tasks.recommendation.options import EvaluationOptions, RecommendationData, TrainingOptions
from longspan.tasks.recommendation.prediction import RankedPrediction, ranked
from longspan.tasks.recommendation.ranking import ItemVectors, impression_logits, impression_parts, measured
from longspan.tasks.recommendation.recorded import Recorded, ragged, read
from longspan.tasks.recommendation.samples import Impressions, labelled
from longspan.tasks.recommendation.scores import RecommendationScores, auc_interval
from longspan.tasks.recommendation.source_files import find_recorded
from longspan.tasks.recommendation.trainer import RecommendationTrainer
from longspan.training.base import LongspanTrainer

_FILE = "names.json"


@dataclass(frozen=True)
class ItemProcessor(TextProcessor):
    """Texts of items as tokens, and their categories and entities, and users, as numbers.

    Attributes:
        names: The names that the numbers replace.
    """

    files = ("tokenizer_config.json", _FILE)

    names: Names

    def save_pretrained(self, folder: str | Path) -> None:
        super().save_pretrained(folder)
        write_json(Path(folder, _FILE), dataclasses.asdict(self.names))

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> "ItemProcessor":
        path, hints = Path(folder, _FILE), typing.get_type_hints(Names)
        # Those of earlier versions count no clicks.
        values = {"items": [], **json_object(path)}
        if values.keys() != hints.keys() or not all(matches(value, hints[name]) for name, value in values.items()):
            raise UserError(f"expected the names of categories, entities and users in {str(path)!r}; restore it.")
        return cls(TextProcessor.from_pretrained(folder).tokenizer, Names(**values))


def names_of(run: Run) -> Names:
    """Return the names of the rows of a model's tables. Raises UserError if their number differs."""
    assert isinstance(run.processor, ItemProcessor)
    names, head = run.processor.names, run.model.config.head
    for what, size in names.settings().items():
        if getattr(head, what) != size:
            raise UserError(
                f"expected {_FILE} of {str(run.folder)!r} to fit its config.json with {what}={getattr(head, what)}, "
                f"got {size}; restore either file."
            )
    return names


#: Impressions that are read together for predictions.
_READ = 1000


@dataclass(frozen=True)
class Recommended:
    """Impressions of one split, and the catalogue that they speak of."""

    rows: Dataset
    recorded: Recorded

    def __len__(self) -> int:
        return len(self.rows)


class Recommendation(Task[RecommendationScores, RecommendationData, TrainingOptions]):
    """Which of the items that a user is shown the user clicks, after all the user clicked before."""

    data_config = RecommendationData
    length_key = "data.history"
    training_options = TrainingOptions
    evaluation_options = EvaluationOptions
    scores = RecommendationScores
    prediction = RankedPrediction
    cuts_examples = False
    model_class = LongspanForRecommendation
    processor = ItemProcessor
    data_hint = "data.path=FOLDER (MIND's, unpacked) or data.path=FILE (a click log: user, title, clicked, time)"

    # What is read

    def columns(self, data: RecommendationData) -> Sequence[Column]:
        return impression_columns(data)

    def splits(self, data: RecommendationData) -> Splits:
        found = read(data, training=False)
        examples: dict[str, Any] = {name: Recommended(rows, found) for name, rows in found.splits.items()}
        return Splits(examples, found.skipped, found.encodings, found.duplicates)

    def inputs_of(
        self,
        run: Run[RecommendationData, TrainingOptions],
        paths: Sequence[Path | str],
        data: RecommendationData,
        stdin: BinaryIO | None,
    ) -> Iterator[Row]:
        skipped: Counter[str] = Counter()
        for path in paths:
            if str(path) == "-":
                raise UserError("expected files or folders to recommend from, got standard input; name a file.")
            own = replace(
                data, path=str(path), train="", validation="", test="", validation_fraction=0, test_fraction=0
            )
            beside = find_recorded(own, training=False, news=False).news
            # Without a table of news of its own, a file speaks of what the model was trained with.
            known = None if beside else read(data, training=False).catalogue
            found = read(own, training=False, candidates=False, catalogue=known)
            skipped.update(found.skipped)
            for rows in found.splits.values():
                for some in rows.iter(_READ):
                    for values in zip(*some.values(), strict=True):
                        impression = dict(zip(some, values, strict=True))
                        # Items are numbers of this catalogue.
                        yield Row({**impression, "catalogue": found.catalogue}, impression["where"], "")
        if skipped:
            note(report.left_out(skipped).lower().removesuffix("."))

    def inputs_in_memory(
        self, run: Run[RecommendationData, TrainingOptions], given: Any, data: RecommendationData
    ) -> Iterator[Row]:
        # A user's clicks are found among all rows.
        return self.inputs_of(run, list(settings_for(given, self.inputs(data), data).values()), data, None)

    def prepare(self, recipe: Recipe[RecommendationData, TrainingOptions]) -> PreparedItems:
        data = recipe.data
        found = read(data)
        made = self.configure(recipe.model, {})
        vectors = read_entity_vectors(data.entity_vectors, data.encoding) if data.entity_vectors else None
        counted = bool(recipe.model.get("wide"))
        names = Names.learned(found.known(), found.users(), data, read_by(made), vectors, counted=counted)
        tokenizer = title_tokenizer(found, data)
        items = Items.encoded(found.catalogue, tokenizer, names, data)
        config = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id, **names.settings()}
        facts: dict[str, Any] = {name: describe(rows) for name, rows in found.splits.items()}
        facts |= {"items": len(found.catalogue), "skipped": found.skipped, "encodings": found.encodings}
        facts["duplicates"] = found.duplicates
        splits = found.scored()
        return PreparedItems(
            splits,
            ItemProcessor(tokenizer, names),
            config,
            facts,
            items=items,
            popularity=found.popularity(),
            vectors=vectors,
        )

    def build_model(self, recipe: Recipe, prepared: Prepared, counted: Counted | None = None) -> PreTrainedModel:
        assert isinstance(prepared, PreparedItems)
        model = super().build_model(recipe, prepared, counted)
        entities = model.recommender.entity_vectors
        if prepared.vectors is not None and entities is not None:
            with torch.no_grad():
                entities.weight[1:] = torch.from_numpy(prepared.vectors.vectors)
        longest = int(prepared.items.title.sizes.max(initial=1))
        check_length(model, longest, "a title", "shorten titles with data.max_length, or set {longer}")
        return model

    def configure(self, settings: Mapping[str, Any], from_data: Mapping[str, Any]) -> LongspanConfig:
        # Without data, one user is enough for a recommender that needs users.
        return super().configure(settings, from_data or {"users": 1})

    # What is trained

    def make_trainer(
        self,
        recipe: Recipe[RecommendationData, TrainingOptions],
        model: PreTrainedModel,
        arguments: TrainingArguments,
        prepared: Prepared,
    ) -> LongspanTrainer:
        assert isinstance(prepared, PreparedItems)
        assert isinstance(prepared.processor, ItemProcessor)
        names = prepared.processor.names
        return RecommendationTrainer(
            model,
            arguments,
            train_dataset=prepared.splits["train"],
            eval_dataset=prepared.splits["validation"],
            items=prepared.items,
            users=names.user_numbers,
            negatives=recipe.data.negatives,
            batch_clicks=recipe.options.batch_clicks,
            popularity=prepared.popularity,
        )

    # What a trained model does

    def evaluate(
        self, run: Run, examples: Any, split: str, options: Any, folder: Path
    ) -> tuple[RecommendationScores, dict[str, Any]]:
        found = examples.recorded
        rows = labelled(examples.rows)
        impressions = Impressions(rows, names_of(run).user_numbers)
        with ItemVectors(run.model, _items(run, found.catalogue), progress=True) as vectors:
            if run.model.wide is None:
                logits, parts = impression_logits(run.model, impressions, vectors, **_sizes(run), progress=True), {}
            else:
                both = impression_parts(run.model, impressions, vectors, **_sizes(run), progress=True)
                logits = combined(run.model.wide, both)
                parts = {"parts": compared(aucs_of_parts(both, logits, impressions)).to_dict()}
            told = report.shown_to_users(run.model, impressions, vectors, logits, found.catalogue, rows)
            worst = report.mistakes(impressions, logits, found.catalogue, rows)
        scores = measured(impressions, logits, self._popularity(run, found))
        write_text(folder / "users.txt", told)
        interval = auc_interval(logits, impressions.clicked, impressions.candidates.offsets, users=impressions.names)
        return scores, {
            "data_summary": describe(rows),
            "auc_interval": interval,
            "unlabelled": len(examples.rows) - len(rows),
            "mistakes": worst,
            **parts,
        }

    def predict(self, run: Run, rows: Iterable[Row]) -> Iterator[RankedPrediction]:
        yield from ranked(
            run, rows, lambda catalogue: _items(run, catalogue), names_of(run).user_numbers, **_sizes(run)
        )

    def case(self, run: Run, row: Row, of: str, at: float | None) -> Case:
        no_place(at)
        (prediction,) = self.predict(run, [row])
        if row.problem:
            raise UserError(f"{row.where}: expected a user with clicks, got {row.problem}; choose another row.")
        items = _items(run, row.values["catalogue"])
        return ranked_item(run, row, of, prediction, items, names_of(run).user_numbers)

    def formats(self) -> Mapping[str, Callable[[Any], str]]:
        return {"mind": RankedPrediction.to_mind}

    def baselines(self) -> Mapping[str, type[Baseline[RecommendationScores]]]:
        return baselines_in(baselines)

    def counts(self) -> type[Counts]:
        return Counts

    # What is reported

    def data_table(self, data: Mapping[str, Any], style: str = "simple") -> str:
        splits = {name: row for name, row in data.items() if isinstance(row, Mapping) and "impressions" in row}
        rows = ([name, *(write(row[key]) for key, (_, write) in _FACTS.items())] for name, row in splits.items())
        parts = [table(["split", *(words for words, _ in _FACTS.values())], rows, style)]
        if data.get("skipped"):
            parts.append(report.left_out(data["skipped"]))
        return "\n\n".join(parts)

    def evaluation_report(self, evaluation: Evaluation) -> str:
        return report.evaluation_report(self, evaluation)

    def card_parts(self, recipe: Recipe, result: TrainingResult) -> CardParts:
        return report.card_parts(recipe)

    def _popularity(self, run: Run, found: Recorded) -> np.ndarray:
        """Return how often each item was clicked in training; once each without the training data."""
        if "train" in found.splits:
            return found.popularity()
        return np.zeros(len(found.catalogue), np.int64)


def describe(rows: Dataset) -> dict[str, Any]:
    """Return what results say about a split."""
    history, candidates, clicked = (ragged(rows, name) for name in ("history", "candidates", "clicked"))
    return {
        "impressions": len(rows),
        "users": len(set(rows["user"][:])),
        "clicks": int((clicked.values == 1).sum()),
        "candidates": float(candidates.sizes.mean()),
        "clicked": float((clicked.values == 1).mean()) if len(clicked.values) else 0.0,
        "history": float(history.sizes.mean()),
        "longest": int(history.sizes.max(initial=0)),
        "unknown_clicks": sum(rows["unknown_history"][:]),
        "unknown_candidates": int(ragged(rows, "unknown").sizes.sum()),
        "unknown_clicked": sum(rows["unknown_clicked"][:]),
    }


_FACTS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "impressions": ("impressions", count),
    "users": ("users", count),
    "clicks": ("clicks", count),
    "candidates": ("candidates, mean", lambda mean: f"{mean:.1f}"),
    "clicked": ("of these clicked", share),
    "history": ("clicks before, mean", lambda mean: f"{mean:.1f}"),
    "longest": ("most", count),
}


def _items(run: Run[RecommendationData, TrainingOptions], catalogue: Dataset) -> Items:
    return Items.encoded(catalogue, tokenizer_of(run.processor), names_of(run), run.recipe.data)


def _sizes(run: Run[RecommendationData, TrainingOptions]) -> dict[str, Any]:
    return {
        "batch_size": run.recipe.training["per_device_eval_batch_size"],
        "batch_clicks": run.recipe.options.batch_clicks,
    }
