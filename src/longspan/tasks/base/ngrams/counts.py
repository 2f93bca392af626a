"""Linear models over the n-grams of the model's own tokens, added: `NgramCounts`."""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor
from transformers import PreTrainedModel

from longspan.data.config import UnlabelledData
from longspan.data.sources.loading import load
from longspan.data.text.long_documents import token_arrays, tokenize_documents
from longspan.data.text.processor import tokenizer_of
from longspan.data.text.tokenization import ordinary_tokens
from longspan.models import LongspanConfig
from longspan.models.wide.classifier import Wide, spelled
from longspan.results.scores import S
from longspan.tasks.base.corpora import text_column, unlabelled_texts
from longspan.tasks.base.examples import ExampleTask
from longspan.tasks.base.mixing import in_units
from longspan.tasks.base.ngrams.bags import batches
from longspan.tasks.base.ngrams.fitting import Chosen, check_memory, few, fit_wide, table_size
from longspan.tasks.base.ngrams.kinds import LATENT
from longspan.tasks.base.ngrams.kinds import Counted as CountedDocuments
from longspan.tasks.base.ngrams.latent import Latent
from longspan.tasks.base.task import Counted, Counts, Fitted, Prepared, Recipe
from longspan.training.lengths import targets


class NgramCounts(Counts[S]):
    """Linear models over n-grams of the recipe's tokens, added: naive-Bayes and TF-IDF weights.

    Documents are cut to `data.max_length`, as for a model. With `model.wide`, models contain it (`Wide`).

    Source: Wang and Manning 2012, https://aclanthology.org/P12-2018, in part (`longspan.tasks.base.ngrams.fitting`).
    """

    #: Whether documents have a class, labels or a number each.
    documents: ClassVar[type[CountedDocuments]] = CountedDocuments

    def decided(self, config: LongspanConfig, outputs: Tensor, targets: Tensor) -> LongspanConfig:
        """Configuration with what a model of the task learns from the validation split; by default nothing more."""
        return config

    def count(self, recipe: Recipe, prepared: Prepared) -> Counted:
        wide, _ = self._fitted(recipe, prepared)
        settings = {"wide_buckets": wide.buckets, "wide_characters": wide.spelling is not None}

        def enter(model: PreTrainedModel) -> None:
            model.wide.load_state_dict(wide.state_dict())
            # Only training needs them, so they are not saved.
            model.wide.held_out = wide.held_out

        return Counted(settings, enter)

    def fit(self, recipe: Recipe) -> Fitted[S]:
        task = recipe.task
        assert isinstance(task, ExampleTask)
        prepared = task.prepare(recipe)
        wide, chosen = self._fitted(recipe, prepared)
        config = task.configure(recipe.model, prepared.config)
        held_out = {name: split for name, split in prepared.splits.items() if name != "train"}
        logits = {name: in_units(_logits(wide, split), config) for name, split in held_out.items()}
        config = self.decided(config, logits["validation"], targets(held_out["validation"]))
        scores = {name: task.score(logits[name], targets(split), config) for name, split in held_out.items()}
        weights = (wide.weight, wide.tfidf_weight, wide.bias)
        return Fitted(scores, _regressions(chosen), sum(int(table.count_nonzero()) for table in weights))

    def _fitted(self, recipe: Recipe, prepared: Prepared) -> tuple[Wide, Chosen]:
        """Model fitted to the training split, and the choices made for it.

        Raises:
            UserError: The weights do not fit into memory.
        """
        training, classes = prepared.splits["train"], len(prepared.config["id2label"])
        characters = recipe.model.get("wide_characters")
        characters = few(training) if characters is None else characters
        tokens = ordinary_tokens(tokenizer_of(prepared.processor))
        latent = _latent(recipe, prepared, tokens)
        more = 0 if latent is None else int((latent.idf > 0).sum())
        places = recipe.model.get("wide_buckets") or table_size(training, classes, characters, more)
        check_memory(places, classes)
        wide = Wide(places, classes, len(tokens) if characters else None)
        if wide.spelling is not None:
            wide.spelling.copy_(spelled(tokens))
        config = prepared.config
        chosen = fit_wide(
            wide,
            training,
            config.get("class_weights"),
            prepared.splits.get("validation"),
            self.documents,
            (config.get("target_mean", 0.0), config.get("target_scale", 1.0)),
            latent,
        )
        return wide, chosen


def _latent(recipe: Recipe, prepared: Prepared, tokens: Sequence[str]) -> Latent | None:
    """Directions of the recipe's texts without labels and its training documents; None where it has no such texts."""
    data = recipe.data
    if not isinstance(data, UnlabelledData) or not data.unlabelled:
        return None
    own, tokenizer = unlabelled_texts(data), tokenizer_of(prepared.processor)
    texts: list[np.ndarray] = []
    for name, split in load(own, text_column(own)).splits.items():
        texts += token_arrays(tokenize_documents(split, tokenizer, own, f"Tokenising {name} without labels"))
    for name in ("train", *(("test",) if data.unlabelled_test else ())):
        texts += [np.asarray(ids) for ids in prepared.splits[name].with_format("numpy")["input_ids"][:]]
    found = Latent.of(texts, np.array([any(map(str.isalnum, token)) for token in tokens]), LATENT.directions)
    return found if found.directions.size else None


@torch.no_grad()
def _logits(wide: Wide, documents: Dataset) -> Tensor:
    """Return the logits of documents with the columns `input_ids` and `length`, (n, c)."""
    found = torch.empty(len(documents), len(wide.bias))
    for rows, ids, mask in batches(documents, "Scoring n-grams"):
        found[torch.tensor(rows)] = wide(ids, mask)
    return found


def _regressions(chosen: Chosen) -> dict[str, Any]:
    """Return the regressions in the sum, each with its scale and its penalty."""
    return {
        kind.name(): f"{scale:.2f} (penalty {penalty:g})"
        for kind, penalty, scale in zip(chosen.kinds, chosen.penalties, chosen.scales, strict=True)
        if scale
    }
