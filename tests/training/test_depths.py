"""Learning rates by depth, and parts of a model that stay as they are."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from longspan import LongspanForMaskedLM, LongspanForSeq2SeqLM, LongspanForSequenceClassification, recipes, train
from longspan.errors import UserError
from longspan.tasks.base.task import Recipe
from longspan.training.base import LongspanTrainer
from longspan.training.depths import decay, freeze, layers_above

SMALL = {"vocab_size": 20, "dim": 8, "heads": 2, "depth": 3, "ngrams": [2], "ngram_buckets": 8}


def rates(optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> dict[str, float]:
    """Return the learning rate of each parameter by name."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {names[id(one)]: group["lr"] for group in optimizer.param_groups for one in group["params"]}


def test_rates_fall_with_the_layers_above():
    model = LongspanForSequenceClassification(
        LongspanForSequenceClassification.configured(**SMALL, position="learned", max_positions=8)
    )
    some, others = list(model.parameters())[:4], list(model.parameters())[4:]
    groups: list[dict[str, Any]] = [{"params": some, "weight_decay": 0.1}, {"params": others}]
    optimizer = torch.optim.AdamW(groups, lr=0.8)
    decay(optimizer, model, 0.5)
    found = rates(optimizer, model)
    assert len(found) == len(list(model.parameters()))
    wanted = {"blocks.0": 0.2, "blocks.1": 0.4, "blocks.2": 0.8, "embeddings": 0.1, "ngrams": 0.1, "positions": 0.1}
    for name, rate in found.items():
        part = next((part for part in wanted if f"longspan.{part}" in name or f"backbone.{part}" in name), "")
        assert rate == pytest.approx(wanted.get(part, 0.8)), name
    assert {group["weight_decay"] for group in optimizer.param_groups} == {0.1, 0.01}
    # Logs show the rate of the first group.
    assert optimizer.param_groups[0]["lr"] == 0.8


def test_layers_that_share_weights_count_where_they_are_last():
    model = LongspanForSequenceClassification(
        LongspanForSequenceClassification.configured(**SMALL, mixers=["additive", "softmax"], share_layers=True)
    )
    above = layers_above(model)
    blocks = [{above[id(one)] for one in block.parameters()} for block in model.longspan.backbone.blocks]
    assert blocks == [{0}, {1}]


@pytest.mark.parametrize(
    ("frozen", "trained"),
    [
        ("", ["embeddings", "ngrams", "blocks.0", "blocks.1", "blocks.2", "final_norm", "classifier"]),
        ("embeddings", ["blocks.0", "blocks.1", "blocks.2", "final_norm", "classifier"]),
        (0, ["blocks.0", "blocks.1", "blocks.2", "final_norm", "classifier"]),
        (2, ["blocks.2", "final_norm", "classifier"]),
        (3, ["classifier"]),
        ("backbone", ["classifier"]),
    ],
)
def test_what_is_frozen(frozen, trained):
    model = LongspanForSequenceClassification(
        LongspanForSequenceClassification.configured(**SMALL, position="none", pooling="mean")
    )
    freeze(model, frozen)
    found = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert found
    assert {part for part in trained if any(part in name for name in found)} == set(trained)
    assert all(any(part in name for part in trained) for name in found)


BOTH = {**SMALL, "depth": 2, "decoder_depth": 1, "mixers": ["softmax"]}
TWO = {"shared_vocabulary": False, "target_vocab_size": 9, "tie_word_embeddings": False}


@pytest.mark.parametrize("settings", [{"copy": True}, TWO], ids=["one vocabulary", "two"])
def test_a_decoder_is_above_its_encoder(settings):
    model = LongspanForSeq2SeqLM(LongspanForSeq2SeqLM.configured(**BOTH, **settings, position="learned"))
    above = layers_above(model)
    found = {name: above[id(parameter)] for name, parameter in model.named_parameters()}
    wanted = {"longspan.backbone.blocks.0": 2, "longspan.backbone": 1, "decoder.backbone": 0, "longspan": 3}
    wanted |= {"decoder": 3, "lm_head": 0, "copying": 0}
    for name, count in found.items():
        assert count == next(number for part, number in wanted.items() if name.startswith(part)), name
    # One that is shared is the encoder's.
    tables = [id(table.weight) for table in (model.longspan.embeddings.table, model.decoder.embeddings.table)]
    assert len({*tables}) == (2 if settings is TWO else 1)
    assert [above[one] for one in tables] == [3, 3]


@pytest.mark.parametrize(
    ("frozen", "trained"),
    [
        ("embeddings", ["longspan.backbone", "decoder.backbone", "lm_head"]),
        (1, ["longspan.backbone.blocks.1", "longspan.backbone.final_norm", "decoder.backbone", "lm_head"]),
        (2, ["decoder.backbone", "lm_head"]),
        (3, ["lm_head"]),
        ("backbone", ["lm_head"]),
    ],
)
def test_what_of_an_encoder_and_a_decoder_is_frozen(frozen, trained):
    model = LongspanForSeq2SeqLM(LongspanForSeq2SeqLM.configured(**BOTH, **TWO, position="learned"))
    freeze(model, frozen)
    found = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert {part for part in trained if any(name.startswith(part) for name in found)} == set(trained)
    assert all(any(name.startswith(part) for part in trained) for name in found)
    with pytest.raises(UserError, match=r"expected training.freeze of at most 3 layers, got 4"):
        freeze(model, 4)


def test_mistakes():
    model = LongspanForSequenceClassification(LongspanForSequenceClassification.configured(**SMALL))
    with pytest.raises(UserError, match=r"expected training.freeze of at most 3 layers, got 4; choose fewer"):
        freeze(model, 4)
    with pytest.raises(UserError, match=r"expected a model with the layers of longspan .* got Linear; leave them out"):
        layers_above(type("Linear", (torch.nn.Linear,), {"base_model": None})(1, 1))
    model.classifier.requires_grad_(False)
    model.pooling.requires_grad_(False)
    with pytest.raises(UserError, match=r"expected something to train, got a model that training.freeze=backbone"):
        freeze(model, "backbone")
    whole = LongspanForMaskedLM(LongspanForMaskedLM.configured(**SMALL))
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(2))])
    with pytest.raises(UserError, match=r"expected unsharded weights for training.layer_decay"):
        decay(optimizer, whole, 0.5)
    optimizer = torch.optim.AdamW(whole.parameters())
    optimizer.param_groups[0]["lr"] = None
    with pytest.raises(UserError, match=r"expected an optimizer with a learning rate .* got AdamW"):
        decay(optimizer, whole, 0.5)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.layer_decay=0", r"training.layer_decay must be above 0 and at most 1, got"),
        ("training.layer_decay=1.1", r"training.layer_decay must be above 0 and at most 1, got"),
        ("training.freeze=embedding", r"training.freeze .* did you mean 'embeddings'"),
        ("training.freeze=-1", r"expected training.freeze of at least 0 layers, got -1"),
        ("training.freeze=1.5", r"training.freeze"),
    ],
)
def test_values_are_checked_when_a_recipe_is_read(override, message):
    with pytest.raises(UserError, match=message):
        recipes.load("classify", [override])
    assert recipes.load("classify", ["training.freeze=2"]).options.freeze == 2


@pytest.fixture
def created(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, float]]:
    """The rates of every optimizer that training creates."""
    create, seen = LongspanTrainer.create_optimizer, []

    def noting(self: LongspanTrainer, *args: Any, **kwargs: Any) -> torch.optim.Optimizer:
        optimizer = create(self, *args, **kwargs)
        seen.append(rates(optimizer, self.model))
        return optimizer

    monkeypatch.setattr(LongspanTrainer, "create_optimizer", noting)
    return seen


def quick(animals: Path, *overrides: str) -> Recipe:
    small = ["model.dim=8", "model.heads=2", "model.depth=2", "model.ngrams=[2]", "model.ngram_buckets=64"]
    length = ["training.max_minutes=0", "training.max_steps=2", "training.eval_strategy=steps", "training.eval_steps=1"]
    given = [f"data.path={animals}", "model.wide=false", *small, *length, *overrides]
    return recipes.load("classify", given)


def test_training_leaves_what_is_frozen_and_resumes_with_its_rates(animals, tmp_path, created):
    recipe = quick(animals, "training.freeze=1", "training.layer_decay=0.5", "training.lr_scheduler_type=constant")
    train(recipe, run=tmp_path / "run", progress=False)
    whole = load_file(tmp_path / "run" / "model.safetensors")
    first, second = (
        load_file(tmp_path / "run" / "checkpoints" / f"checkpoint-{step}" / "model.safetensors") for step in (1, 2)
    )
    moved = {name for name in first if not torch.equal(first[name], second[name])}
    assert moved
    assert all("blocks.1" in name or not name.startswith("longspan.") or "final_norm" in name for name in moved)
    assert [name for name in created[0] if "embeddings" in name or "blocks.0" in name] == []
    assert created[0].keys() >= moved
    (tmp_path / "run" / "metrics.json").unlink()
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "checkpoint-2")
    train(recipe, run=tmp_path / "run", resume=True, progress=False)
    again = load_file(tmp_path / "run" / "model.safetensors")
    assert all(torch.equal(whole[name], again[name]) for name in whole)


def test_tables_of_ngrams_have_the_rate_of_embeddings(animals, tmp_path, created):
    overrides = ["training.layer_decay=0.5", "training.learning_rate=0.4", "training.max_steps=1"]
    train(quick(animals, *overrides), run=tmp_path / "run", progress=False)
    (seen,) = created
    assert seen["longspan.embeddings.ngrams.weight"] == pytest.approx(0.1)
    assert seen["longspan.embeddings.table.weight"] == pytest.approx(0.1)
    assert seen["classifier.weight"] == pytest.approx(0.4)
