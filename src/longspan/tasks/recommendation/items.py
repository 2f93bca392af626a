"""The catalogue as numbers: `Items`, from which a model's inputs are taken, and the names of categories and users."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from longspan.data.batches.by_length import padded_length
from longspan.data.columns.values import in_order
from longspan.data.fingerprints import fingerprint
from longspan.data.text.tokenization import build_tokenizer, token_ids
from longspan.machine.printing import note
from longspan.models import LongspanConfig, recommenders
from longspan.tasks.base.task import Prepared
from longspan.tasks.recommendation.entities import EntityVectors
from longspan.tasks.recommendation.options import RecommendationData
from longspan.tasks.recommendation.ragged import Ragged, offsets_of
from longspan.tasks.recommendation.recorded import Recorded

#: As wide as those of MIND.
_ENTITY_DIM = 100


@dataclass(frozen=True)
class Names:
    """The names of the rows of a model's tables, from 1 on; 0 is any unknown name.

    Attributes:
        categories: Names of categories; empty if there are no categories or the model does not read them; likewise the
        others:
        subcategories: Names of subcategories.
        entities: Identifiers of entities.
        users: Users.
        abstracts: Whether abstracts are read.
        entity_dim: The width of the vectors of entities.
        items: Identifiers of items whose clicks are counted.
    """

    categories: list[str]
    subcategories: list[str]
    entities: list[str]
    users: list[str]
    abstracts: bool
    entity_dim: int
    items: list[str] = field(default_factory=list)

    @classmethod
    def learned(
        cls,
        known: Dataset,
        users: Sequence[str],
        data: RecommendationData,
        reads: frozenset[str],
        vectors: EntityVectors | None,
        *,
        counted: bool = False,
    ) -> "Names":
        """Vocabularies of items that were shown in training, as far as a recommender that `reads` these needs them.

        With `vectors`, entities are all that have one. The clicks of items are `counted` or not.
        """

        def names(column: str, field: str) -> list[str]:
            return in_order(set(known.unique(column)) - {""}) if field in reads else []

        entities: list[str] = []
        if "entity_ids" in reads and data.max_entities:
            shown = {name for found in known["entities"][:] for name in found[: data.max_entities]}
            entities = in_order(shown) if vectors is None else vectors.names
        return cls(
            names("category", "category_ids"),
            names("subcategory", "subcategory_ids"),
            entities,
            list(users) if "user_ids" in reads else [],
            "abstract_ids" in reads and bool(data.max_abstract_length) and any(known["abstract"][:]),
            (_ENTITY_DIM if vectors is None else vectors.vectors.shape[1]) if entities else 0,
            known["item"][:] if counted else [],
        )

    @property
    def user_numbers(self) -> dict[str, int]:
        """The numbers of users, from 1."""
        return {name: number for number, name in enumerate(self.users, 1)}

    def settings(self) -> dict[str, Any]:
        """Their settings in a model's configuration."""
        return {
            "categories": len(self.categories),
            "subcategories": len(self.subcategories),
            "entities": len(self.entities),
            "users": len(self.users),
            "abstracts": self.abstracts,
            "entity_dim": self.entity_dim,
            "items": len(self.items),
        }


def read_by(config: LongspanConfig) -> frozenset[str]:
    """Fields of items and users that the recommender of a configuration reads."""
    return recommenders.load(config.head.recommender).reads


@dataclass(frozen=True)
class Items:
    """A catalogue, of which `inputs` are what `LongspanForRecommendation` reads.

    Attributes:
        title: The tokens of each title.
        abstract: Those of each abstract, if they are read.
        numbers: By the model's argument, one number for each item (categories).
        entities: The entities of each item, if they are read.
        pad_id: Id of the padding token.
        known: The number of each item among those whose clicks are counted, 0 for one that is not, `(items,)`.
    """

    title: Ragged
    abstract: Ragged | None
    numbers: dict[str, np.ndarray]
    entities: Ragged | None
    pad_id: int
    known: np.ndarray

    @classmethod
    def encoded(
        cls, catalogue: Dataset, tokenizer: PreTrainedTokenizerBase, names: Names, data: RecommendationData
    ) -> "Items":
        """Return a catalogue, `longspan.tasks.recommendation.recorded.Recorded.catalogue`, in numbers."""
        numbers = {}
        for argument, column, known in (
            ("category_ids", "category", names.categories),
            ("subcategory_ids", "subcategory", names.subcategories),
        ):
            if known:
                number = {name: place for place, name in enumerate(known, 1)}
                numbers[argument] = np.array([number.get(name, 0) for name in catalogue[column][:]], np.int64)
        entities = None
        if names.entities:
            number = {name: place for place, name in enumerate(names.entities, 1)}
            entities = ragged_of(
                [number.get(name, 0) for name in found[: data.max_entities]] for found in catalogue["entities"][:]
            )
        abstract = None
        if names.abstracts:
            abstract = _texts("abstract", catalogue, tokenizer, data.max_abstract_length, data.keep)
        title = _texts("title", catalogue, tokenizer, data.max_length, data.keep)
        number = {name: place for place, name in enumerate(names.items, 1)}
        counted = np.zeros(len(catalogue), np.int64)
        if number:
            counted[:] = [number.get(name, 0) for name in catalogue["item"][:]]
        return cls(title, abstract, numbers, entities, tokenizer.pad_token_id, counted)

    def __len__(self) -> int:
        return len(self.title.offsets) - 1

    def inputs(self, rows: np.ndarray) -> dict[str, Tensor]:
        """Model inputs of the items of these numbers."""
        ids, mask = padded(self.title, rows, self.pad_id)
        found = {"input_ids": ids, "attention_mask": mask}
        if self.abstract is not None:
            found["abstract_ids"], found["abstract_mask"] = padded(self.abstract, rows, self.pad_id)
        if self.entities is not None:
            found["entity_ids"] = padded(self.entities, rows, 0)[0]
        found |= {name: numbers[rows] for name, numbers in self.numbers.items()}
        return {name: torch.from_numpy(array.astype(np.int64)) for name, array in found.items()}

    def counted(self, rows: np.ndarray) -> dict[str, Tensor]:
        """Inputs of the counts for the items of these numbers: words, and the items whose clicks are counted."""
        ids, mask = padded(self.title, rows, self.pad_id)
        arrays = {"input_ids": ids, "attention_mask": mask, "item_ids": self.known[rows]}
        return {name: torch.from_numpy(array.astype(np.int64)) for name, array in arrays.items()}


def _texts(column: str, catalogue: Dataset, tokenizer: PreTrainedTokenizerBase, longest: int, keep: str) -> Ragged:
    """Return the tokens of the texts of a column, and say how many have more than are read."""
    kept = slice(-longest, None) if keep == "last" else slice(longest or None)
    cut = 0

    def shortened() -> Iterator[np.ndarray]:
        nonlocal cut
        for ids in token_ids(tokenizer, catalogue[column][:]):
            cut += 0 < longest < len(ids)
            yield ids[kept]

    found = ragged_of(shortened())
    if cut:
        key = "max_length" if column == "title" else f"max_{column}_length"
        note(
            f"{cut:,} of {len(catalogue):,} {column}s have more than the {longest:,} tokens that are read (data.{key})"
        )
    return found


@dataclass(frozen=True)
class PreparedItems(Prepared):
    """Training data with the catalogue.

    Attributes:
        items: The catalogue in numbers.
        popularity: How often each item was clicked in training, `(items,)`.
        vectors: Those that entities begin with, if there are any.
    """

    items: Items = field(kw_only=True)
    popularity: np.ndarray = field(kw_only=True)
    vectors: EntityVectors | None = field(kw_only=True)


def title_tokenizer(found: Recorded, data: RecommendationData) -> PreTrainedTokenizerBase:
    """Return the tokenizer of titles and abstracts, learned from the items that training knows."""
    known = found.known()
    texts = (text for column in ("title", "abstract") for text in known[column][:] if text)
    key = f"recommendation {fingerprint(found.splits['train'])} {fingerprint(found.catalogue)}"
    return build_tokenizer(data, texts, cache_key=key)


def padded(lists: Ragged, rows: np.ndarray, fill: int) -> tuple[np.ndarray, np.ndarray]:
    """Return some lists in rows of equal width, `(n, m)`, with `fill` after the last value, and which are values."""
    starts = lists.offsets[rows]
    sizes = lists.offsets[rows + 1] - starts
    places = np.arange(padded_length(max(1, int(sizes.max(initial=0)))))
    real = places < sizes[:, None]
    found = np.full(real.shape, fill, np.int64)
    found[real] = lists.values[(starts[:, None] + places)[real]]
    return found, real


def ragged_of(lists: Iterable[Sequence[int] | np.ndarray]) -> Ragged:
    """Return lists of numbers below 2^31 as flat arrays."""
    arrays = [np.asarray(each, np.int32) for each in lists]
    sizes = np.array([len(each) for each in arrays], np.int64)
    return Ragged(np.concatenate([np.empty(0, np.int32), *arrays]), offsets_of(sizes))
