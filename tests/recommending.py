"""Small recommenders and batches for them."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from longspan import LongspanForRecommendation

#: The sizes of the published ones, made small.
SMALL: dict[str, dict[str, Any]] = {
    "fastformer": {"dim": 8, "depth": 1, "user_depth": 1, "heads": 2, "feed_forward_dim": 8, "dropout": 0.0},
    "longspan": {"user_embedding": True},
    "lstur": {"filters": 6, "category_dim": 3, "query_dim": 5},
    "naml": {"filters": 6, "category_dim": 3, "query_dim": 5},
    "npa": {"filters": 6, "user_dim": 4, "query_dim": 5},
    "nrms": {"heads": 2, "head_dim": 3, "query_dim": 5},
}
SIZES = {"users": 4, "categories": 3, "subcategories": 5, "entities": 6, "entity_dim": 4, "abstracts": True}
#: By recommender, with what else they can be.
FORMS: dict[str, dict[str, Any]] = {name: {"recommender": name} for name in SMALL} | {
    "lstur-con": {"recommender": "lstur", "recommender_options": {"combination": "con"}},
    "longspan-causal": {"user_causal": True, "user_mixers": ["gated_linear", "softmax"], "user_depth": 2},
    "longspan-positions": {"user_position": "sinusoidal", "user_mixers": ["local"]},
    "longspan-bare": {"user_depth": 0},
    "fastformer-causal": {"recommender": "fastformer", "user_causal": True},
}
STREAMING = ["naml", "lstur", "lstur-con", "npa", "longspan-causal", "longspan-bare", "fastformer-causal"]

_GENERATOR = torch.Generator().manual_seed(5)


def _numbers(most: int, *shape: int) -> Tensor:
    return torch.randint(1, most, shape, generator=_GENERATOR)


#: Seven news: the first has nothing of anything; the titles of others are padded on either side.
NEWS: dict[str, Tensor] = {
    "input_ids": _numbers(30, 7, 6),
    "attention_mask": torch.tensor(
        [[0] * 6, [1] * 6, [1, 1, 1, 0, 0, 0], [0, 0, 0, 0, 1, 1], [0, 1, 1, 1, 1, 0], [1, 0, 0, 0, 0, 0], [0] * 6]
    ),
    "abstract_ids": _numbers(30, 7, 4),
    "abstract_mask": torch.tensor([[0] * 4, [1] * 4, [0] * 4, [1, 1, 0, 0], [0, 1, 1, 1], [0, 0, 0, 1], [1] * 4]),
    "category_ids": torch.tensor([0, 1, 2, 3, 0, 1, 1]),
    "subcategory_ids": torch.tensor([0, 5, 4, 0, 2, 1, 3]),
    "entity_ids": torch.tensor([[0, 0], [1, 6], [0, 2], [0, 0], [3, 0], [4, 4], [5, 1]]),
}
#: Four users: padded on the right, on the left, without clicks, with one.
USERS: dict[str, Tensor] = {
    "history": torch.tensor([[1, 2, 3, 1, 0], [6, 6, 5, 4, 2], [1, 1, 1, 1, 1], [0, 0, 3, 0, 0]]),
    "history_mask": torch.tensor([[1, 1, 1, 1, 0], [0, 0, 1, 1, 1], [0] * 5, [0, 0, 1, 0, 0]]),
    "candidates": torch.tensor([[4, 5, 6], [1, 2, 0], [3, 4, 0], [2, 0, 1]]),
    "candidate_mask": torch.tensor([[1, 1, 1], [1, 1, 0], [1, 1, 1], [0, 0, 1]]),
    "user_ids": torch.tensor([1, 4, 2, 0]),
}
LABELS = torch.tensor([[1, 0, 1], [0, 1, -100], [0, 0, 1], [-100, -100, 1]])


def build(form: str, dtype: torch.dtype = torch.float64, **changes: Any) -> LongspanForRecommendation:
    torch.manual_seed(1)
    settings: dict[str, Any] = {"vocab_size": 30, "dim": 8, "heads": 2, "depth": 1, "embedding_dim": 6}
    settings |= SIZES | {"initializer_range": 0.4, "dropout": 0.0} | FORMS[form] | changes
    name = changes.get("recommender", form.partition("-")[0])
    options = SMALL.get(name, {}) | ({"dropout": 0.0} if name in ("lstur", "naml", "npa", "nrms") else {})
    chosen = [each.get("recommender_options", {}) for each in (FORMS[form], changes)]
    settings["recommender_options"] = options | chosen[0] | chosen[1]
    model = LongspanForRecommendation(LongspanForRecommendation.configured(**settings)).to(dtype).eval()
    with torch.no_grad():
        for parameter in model.recommender.parameters():
            if parameter.ndim == 1:
                # Biases begin as zeros, which would hide them.
                parameter.add_(torch.randn_like(parameter) * 0.3)
    return model


def news(model: LongspanForRecommendation, rows: Any = slice(None)) -> dict[str, Tensor]:
    """The fields of news that a model reads."""
    wanted = {"input_ids", "attention_mask", *model.recommender.reads}
    wanted |= {"abstract_mask"} if "abstract_ids" in wanted else set()
    return {name: field[rows] for name, field in NEWS.items() if name in wanted}


def batch(model: LongspanForRecommendation, **changes: Tensor) -> dict[str, Tensor]:
    return news(model) | USERS | changes


def padded(fields: dict[str, Tensor], names: tuple[str, ...], left: int, right: int, value: int) -> dict[str, Tensor]:
    """The same with these columns padded, masks by zeros."""
    return fields | {
        name: pad(fields[name], (left, right), value=0 if name.endswith("mask") else value)
        for name in names
        if name in fields
    }
