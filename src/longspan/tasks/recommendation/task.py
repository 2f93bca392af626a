"""Recommending items, such as news: `Recommendation`."""

import dataclasses
import typing
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import numpy as np
import torch
from datasets import Dataset
from jaxtyping import Bool, Float
from pyarrow import parquet
from torch import Tensor
from transformers import PreTrainedModel, TrainingArguments

from longspan.data.columns.kinds import Column
from longspan.data.processor import Places, json_object
from longspan.data.sources.formats.rows import Row
from longspan.data.sources.in_memory import settings_for
from longspan.data.sources.loading import Splits
from longspan.data.text.processor import TextProcessor
from longspan.errors import UserError, check_choice
from longspan.errors.hints import matches
from longspan.explanations.question import InputSequence, LayerWeights, Question
from longspan.machine.printing import note
from longspan.models import LongspanConfig, LongspanForRecommendation
from longspan.models.limits import check_length
from longspan.report import count, share
from longspan.report.card import Hub
from longspan.results import Evaluation
from longspan.results.outputs import write_json, write_text
from longspan.tasks.base.case import Case, Target, no_place
from longspan.tasks.base.engine import ModelInput, Pipeline, PipelineTask, predictions, read_row
from longspan.tasks.base.task import Counted, Facts, Prepared, Recipe, Run
from longspan.tasks.recommendation import report
from longspan.tasks.recommendation.columns import impression_columns
from longspan.tasks.recommendation.counting import aucs_of_parts, combined, compared
from longspan.tasks.recommendation.entities import read_entity_vectors
from longspan.tasks.recommendation.impressions import FEATURES
from longspan.tasks.recommendation.items import Items, Names, PreparedItems, read_by, title_tokenizer
from longspan.tasks.recommendation.options import EvaluationOptions, RecommendationData, TrainingOptions
from longspan.tasks.recommendation.prediction import TOGETHER, RankedPrediction, ranked
from longspan.tasks.recommendation.ranking import ItemVectors, impression_outputs, measured
from longspan.tasks.recommendation.recorded import PAST, Recorded, ragged, read_recorded
from longspan.tasks.recommendation.samples import Impressions, labelled
from longspan.tasks.recommendation.scores import RecommendationScores, auc_interval
from longspan.tasks.recommendation.source_files import find_recorded
from longspan.tasks.recommendation.trainer import RecommendationTrainer

_FILE = "names.json"
_PAST = "histories.parquet"


@dataclass(frozen=True)
class ItemProcessor(TextProcessor):
    """Texts of items as tokens, and their categories and entities, and users, as numbers.

    Attributes:
        names: The names that the numbers replace.
        past: The last clicks of each training user of a click log, on which a log that is given later follows.
    """

    files = ("tokenizer_config.json", _FILE)

    names: Names
    past: Dataset | None = None

    def save_pretrained(self, folder: str | Path) -> None:
        super().save_pretrained(folder)
        if self.past is not None:
            parquet.write_table(self.past.with_format("arrow")[:], Path(folder, _PAST))
        write_json(Path(folder, _FILE), dataclasses.asdict(self.names))

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> "ItemProcessor":
        path, hints = Path(folder, _FILE), typing.get_type_hints(Names)
        # Those of earlier versions count no clicks.
        values = {"items": [], **json_object(path)}
        if values.keys() != hints.keys() or not all(matches(value, hints[name]) for name, value in values.items()):
            raise UserError(f"expected the names of categories, entities and users in {str(path)!r}; restore it.")
        return cls(TextProcessor.from_pretrained(folder).tokenizer, Names(**values), _read_past(Path(folder, _PAST)))


def _read_past(path: Path) -> Dataset | None:
    """Clicks that a run has. Earlier versions had none. Raises UserError if the file is damaged."""
    if not path.exists():
        return None
    try:
        return Dataset(parquet.read_table(path).select(list(PAST)).cast(PAST.arrow_schema))
    except (OSError, KeyError, ValueError) as error:
        raise UserError(
            f"expected the clicks of users in {str(path)!r}, got something else ({error}); restore it."
        ) from None


def names_of(run: "ItemRun") -> Names:
    """Return the names of the rows of a model's tables. Raises UserError if their number differs."""
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


ItemRun = Run[RecommendationData, TrainingOptions, ItemProcessor]


class RankingPipeline(Pipeline[Row, RankedPrediction, ItemProcessor]):
    """Impressions, whose candidates are ranked; the items of a catalogue are read once."""

    example = "a user with clicks"
    window = TOGETHER

    def __init__(self, run: ItemRun, options: Any) -> None:
        super().__init__(run, options)
        self.users = names_of(run).user_numbers
        self.sizes: dict[str, Any] = {
            "batch_size": run.recipe.training["per_device_eval_batch_size"],
            "batch_clicks": run.recipe.options.batch_clicks,
        }
        self._vectors: ItemVectors | None = None
        self._catalogue: Dataset | None = None

    def size(self, row: Row) -> int:
        # Numbers of a catalogue take little memory.
        return 0

    def problem(self, row: Row) -> str:
        return ""

    def items(self, catalogue: Dataset) -> Items:
        """Items of a catalogue as numbers."""
        return Items.encoded(catalogue, self.processor.tokenizer, self.processor.names, self.data)

    def vectors(self, catalogue: Dataset) -> ItemVectors:
        """Vectors of the items of a catalogue."""
        if catalogue is not self._catalogue or self._vectors is None:
            self.close()
            self._catalogue = catalogue
            self._vectors = ItemVectors(self.model, self.items(catalogue), progress=True).__enter__()
        return self._vectors

    def close(self) -> None:
        if self._vectors is not None:
            self._vectors.__exit__()
            self._vectors = None

    def preprocess(self, rows: Sequence[Row]) -> Iterator[ModelInput[Row]]:
        return map(ModelInput, rows)

    def forward(self, inputs: Sequence[ModelInput[Row]]) -> Iterator[RankedPrediction]:
        rows = [one.value for one in inputs]
        for _, group in groupby(rows, key=lambda row: id(row.values["catalogue"])):
            some = list(group)
            catalogue = some[0].values["catalogue"]
            yield from ranked(self.run, some, catalogue, self.vectors(catalogue), self.users, **self.sizes)

    def postprocess(self, row: Row, read: ModelInput[Row], output: RankedPrediction) -> RankedPrediction:
        return output

    def encode(self, examples: Any, split: str) -> Dataset:
        self.split = split
        return labelled(examples.rows)

    def check_lengths(self, encoded: Dataset) -> None:
        """Do nothing: titles and histories are cut."""

    def outputs(self, encoded: Dataset) -> None:
        """Nothing: candidates are scored with the vectors of their catalogue, see `score`."""

    def score(
        self, examples: Any, encoded: Dataset, outputs: None, folder: Path
    ) -> tuple[RecommendationScores, dict[str, Any]]:
        found, impressions, model = examples.recorded, Impressions(encoded, self.users), self.model
        vectors, details = self.vectors(found.catalogue), dict[str, Any]()
        if model.wide is None:
            logits = impression_outputs(model, impressions, vectors, **self.sizes, progress=True)
        else:
            both = impression_outputs(model, impressions, vectors, name="parts", **self.sizes, progress=True)
            logits = combined(model.wide, both)
            details = {"parts": compared(aucs_of_parts(both, logits, impressions)).to_dict()}
        users = report.shown_to_users(model, impressions, vectors, logits, found.catalogue, encoded)
        write_text(folder / "users.txt", users)
        # Without the training data, each item counts as clicked equally often.
        trained = self.split != "all" and "train" in found.splits
        clicks = found.popularity() if trained else np.zeros(len(found.catalogue), np.int64)
        offsets = impressions.candidates.offsets
        return measured(impressions, logits, clicks), {
            "data_summary": describe(encoded),
            "auc_interval": auc_interval(logits, impressions.clicked, offsets, users=impressions.names),
            "unlabelled": len(examples.rows) - len(encoded),
            "mistakes": report.mistakes(impressions, logits, found.catalogue, encoded),
            **details,
        }


class Recommendation(PipelineTask[RecommendationScores, RecommendationData, TrainingOptions, ItemProcessor]):
    """Ranking of the items that a user is shown, by how likely the user clicks them after earlier clicks."""

    data_config = RecommendationData
    hub = Hub(tags=("recommendation", "news"))
    pipeline_class = RankingPipeline
    trainer_class = RecommendationTrainer
    length_key = "data.history"
    training_options = TrainingOptions
    evaluation_options = EvaluationOptions
    scores = RecommendationScores
    prediction = RankedPrediction
    cuts_examples = False
    model_class = LongspanForRecommendation
    processor = ItemProcessor
    data_hint = "data.path=FOLDER (MIND's, unpacked) or data.path=FILE (a click log: user, title, clicked, time)"

    facts: ClassVar[Facts] = {
        "impressions": ("impressions", count),
        "users": ("users", count),
        "clicks": ("clicks", count),
        "candidates": ("candidates, mean", lambda mean: f"{mean:.1f}"),
        "clicked": ("of these clicked", share),
        "history": ("clicks before, mean", lambda mean: f"{mean:.1f}"),
        "longest": ("most", count),
    }

    # What is read

    def columns(self, data: RecommendationData) -> Sequence[Column]:
        return impression_columns(data)

    def splits(self, data: RecommendationData) -> Splits:
        return self._splits(data, None)

    def other_splits(self, run: ItemRun, data: RecommendationData) -> Splits:
        return self._splits(data, run.processor.past)

    def _splits(self, data: RecommendationData, past: Dataset | None) -> Splits:
        found = read_recorded(data, training=False, past=past)
        examples: dict[str, Any] = {name: Recommended(rows, found) for name, rows in found.splits.items()}
        return Splits(examples, found.skipped, found.encodings, found.duplicates)

    def inputs_of(
        self,
        run: ItemRun,
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
            known = None if beside else read_recorded(data, training=False).catalogue
            found = read_recorded(own, training=False, candidates=False, catalogue=known, past=run.processor.past)
            skipped.update(found.skipped)
            for rows in found.splits.values():
                for some in rows.iter(_READ):
                    for values in zip(*some.values(), strict=True):
                        impression = dict(zip(some, values, strict=True))
                        # Items are numbers of this catalogue.
                        yield Row({**impression, "catalogue": found.catalogue}, impression["where"], "")
        if skipped:
            note(report.left_out(skipped).lower().removesuffix("."))

    def inputs_in_memory(self, run: ItemRun, given: Any, data: RecommendationData) -> Iterator[Row]:
        # A user's clicks are found among all rows.
        return self.inputs_of(run, list(settings_for(given, self.inputs(data), data).values()), data, None)

    def prepare(self, recipe: Recipe[RecommendationData, TrainingOptions]) -> PreparedItems:
        data = recipe.data
        found = read_recorded(data)
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
            ItemProcessor(tokenizer, names, found.past),
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

    def trainer_options(
        self,
        recipe: Recipe[RecommendationData, TrainingOptions],
        model: PreTrainedModel,
        arguments: TrainingArguments,
        prepared: Prepared[ItemProcessor],
    ) -> dict[str, Any]:
        assert isinstance(prepared, PreparedItems)
        return {
            "items": prepared.items,
            "users": prepared.processor.names.user_numbers,
            "negatives": recipe.data.negatives,
            "batch_clicks": recipe.options.batch_clicks,
            "popularity": prepared.popularity,
        }

    # What a trained model does

    def case(self, run: ItemRun, row: Row, of: str, at: float | None) -> Case:
        no_place(at)
        pipeline: RankingPipeline = self.pipeline(run)
        read_row(pipeline, row)
        (prediction,) = predictions(pipeline, [row])
        assert isinstance(prediction, RankedPrediction)
        return ranked_item(run, row, of, prediction, pipeline.items(row.values["catalogue"]), pipeline.users)

    def formats(self) -> Mapping[str, Callable[[Any], str]]:
        return {"mind": RankedPrediction.to_mind}

    # What is reported

    def data_table(self, data: Mapping[str, Any], style: str = "simple") -> str:
        found = super().data_table(data, style)
        return f"{found}\n\n{report.left_out(data['skipped'])}" if data.get("skipped") else found

    def sections(self, evaluation: Evaluation) -> list[str]:
        return [*super().sections(evaluation), report.told_of(evaluation)]

    def evaluation_report(self, evaluation: Evaluation) -> str:
        return f"{super().evaluation_report(evaluation)}, with some users and what weighed most for them in users.txt"


def describe(rows: Dataset) -> dict[str, Any]:
    """Facts about a split for the results."""
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


@dataclass(frozen=True)
class ClickQuestion(Question):
    """A score of an item for a user, as a function of the clicks, whose vectors come first in `news_vectors`."""

    @property
    def real(self) -> Bool[Tensor, " t"]:
        return self.batch["history_mask"][0].bool().cpu()

    @property
    def lengths(self) -> list[int]:
        return [self.batch["history_mask"].shape[1]]

    @torch.no_grad()
    def weights(self) -> Iterator[LayerWeights]:
        """Yield how much each click weighs in the mean that is the user, where there is such a mean."""
        found = self.model(**self.batch, **self.settings).history_weights
        if found is not None:
            yield "user", "click", found.float().cpu()

    def scaled(self, scales: Float[Tensor, "1 t"]) -> Tensor:
        vectors = self.settings["news_vectors"]
        every = torch.cat((scales[0], scales.new_ones(len(vectors) - scales.shape[1])))
        return self.logits(news_vectors=vectors * every.view(-1, *[1] * (vectors.ndim - 1)))


def ranked_item(run: Run, row: Row, of: str, prediction: RankedPrediction, items: Items, users: dict[str, int]) -> Case:
    """Case of the score of an item for a user.

    Args:
        run: The run.
        row: An impression.
        of: The identifier or the title of one of its candidates; by default the one that is ranked first.
        prediction: The ranking.
        items: The catalogue as numbers.
        users: Numbers of known users.

    Raises:
        UserError: See `Task.case`.
    """
    model, catalogue = run.model, row.values["catalogue"]
    history = np.asarray(row.values["history"], np.int64)
    if prediction.ranking is None or not len(history):
        problem = prediction.error or "one without clicks"
        raise UserError(f"{row.where}: expected a user with clicks to explain by, got {problem}; choose another row.")
    names = [one["item"] for one in prediction.ranking]
    titles = {one["title"]: one["item"] for one in prediction.ranking}
    # Items may lack a title.
    name = titles.get(of, of) if of else names[0]
    check_choice("item", name, names)
    wanted = names.index(name)
    number = {item: place for place, item in enumerate(catalogue["item"][:])}
    candidates = np.array([number[name] for name in names])
    read = np.concatenate([history, candidates])
    settings: dict[str, Any] = {name: each.to(model.device) for name, each in items.inputs(read).items()}
    with torch.no_grad():
        settings = {"news_vectors": model.encode_news(**settings)}
    batch = {
        "history": torch.arange(len(history)),
        "history_mask": torch.ones(len(history), dtype=torch.long),
        "candidates": torch.arange(len(history), len(read)),
    }
    shown = Impressions(Dataset.from_list([{name: row.values[name] for name in FEATURES}], features=FEATURES), users)
    batch = {name: each.unsqueeze(0) for name, each in batch.items()} | {"user_ids": torch.from_numpy(shown.users)}
    if model.wide is not None:
        settings |= {name: each.to(model.device) for name, each in items.counted(read).items()}
        batch["times"] = model.wide.ticks(shown.times)
    batch = {name: each.to(model.device) for name, each in batch.items()}
    asked = Target(
        prediction.ranking[wanted]["title"] or names[wanted],
        "logits",
        lambda logits: logits[:, wanted],
        lambda logits: logits.softmax(1)[:, wanted],
    )
    reads = (InputSequence("history_mask"),)
    question = ClickQuestion(model, batch, asked.value, asked.share, reads, settings=settings, exact=True)
    # People count clicks from 1, the oldest first.
    first = np.arange(1, len(history) + 1)
    clicked = catalogue.select_columns(["title"])[history]["title"]
    places = Places("clicks", np.stack([first, first + 1], 1), names=list(clicked))
    return Case(row.where, asked, question, places, prediction.to_dict())
