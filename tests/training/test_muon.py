"""Muon: steps of matrices against singular values in float64, what it takes of a model, and training with it."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import DistributedType
from interruptions import interrupted, same_result
from torch import Tensor, nn

from longspan import LongspanForImageClassification, LongspanForSeq2SeqLM, recipes, train
from longspan.errors import UserError
from longspan.tasks.base.task import Recipe
from longspan.training import base
from longspan.training.optimizers import Muon, matrices_of, orthogonal


def by_singular_values(matrix: Tensor) -> Tensor:
    """Return what the iteration makes of a matrix: it leaves singular vectors, and maps singular values one by one."""
    u, s, v = torch.linalg.svd(matrix.double(), full_matrices=False)
    s = s / s.square().sum().sqrt()
    for _ in range(5):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    return (u * s) @ v


@pytest.mark.parametrize("shape", [(6, 6), (4, 9), (9, 4), (1, 5), (5, 1)])
def test_steps_have_the_singular_vectors_of_the_gradient(shape: tuple[int, int]) -> None:
    matrices = torch.randn(3, *shape, generator=torch.Generator().manual_seed(0)) * torch.tensor([1e-6, 1.0, 1e6]).view(
        -1, 1, 1
    )
    found = orthogonal(matrices)
    for matrix, step in zip(matrices, found, strict=True):
        # Each iteration multiplies rounding errors, 6e-8 of float32, by at most 3.4 where singular values are small.
        torch.testing.assert_close(step.double(), by_singular_values(matrix), rtol=0, atol=2e-5)
        values = torch.linalg.svdvals(step)
        assert values.max() < 1.25
    # From 0.01 of the norm on, all end near 1.
    assert torch.linalg.svdvals(found[1]).min() > 0.6


def test_a_matrix_without_a_gradient_has_no_step() -> None:
    assert torch.equal(orthogonal(torch.zeros(1, 3, 4)), torch.zeros(1, 3, 4))
    moved, still = nn.Parameter(torch.ones(2, 3)), nn.Parameter(torch.ones(2, 3))
    steps = Muon([moved, still], lr=0.1)
    moved.grad = torch.ones(2, 3)
    steps.step()
    assert not torch.equal(moved, torch.ones(2, 3))
    assert torch.equal(still, torch.ones(2, 3))


def test_two_steps_by_the_formula() -> None:
    draw = torch.Generator().manual_seed(1)
    start, gradients = torch.randn(2, 3, 5, generator=draw), torch.randn(2, 2, 3, 5, generator=draw)
    weights = [nn.Parameter(each.clone()) for each in start]
    steps = Muon(weights, lr=0.1, weight_decay=0.3, momentum=0.9)
    wanted, means = start.double(), torch.zeros(2, 3, 5, dtype=torch.float64)
    for gradient in gradients:
        for weight, each in zip(weights, gradient, strict=True):
            weight.grad = each.clone()
        steps.step()
        means = 0.9 * means + 0.1 * gradient
        moved = 0.1 * gradient + 0.9 * means
        found = torch.stack([by_singular_values(each) for each in moved])
        wanted = wanted - 0.1 * (0.8 * 5**0.5 * found + 0.3 * wanted)
    for weight, right in zip(weights, wanted, strict=True):
        # Errors of the steps, 2e-5, times the rate and the size.
        torch.testing.assert_close(weight.detach().double(), right, rtol=0, atol=5e-6)


def test_a_convolution_is_a_matrix() -> None:
    draw = torch.Generator().manual_seed(2)
    convolution, flat = (nn.Parameter(torch.ones(shape)) for shape in ((3, 2, 2, 2), (3, 8)))
    convolution.grad = torch.randn(3, 2, 2, 2, generator=draw)
    flat.grad = convolution.grad.flatten(1)
    Muon([convolution, flat], lr=0.1).step()
    assert torch.equal(convolution.flatten(1), flat)


def test_it_takes_the_convolutions_of_images() -> None:
    of_data = {"channels": 12, "patch": 2, "side": 4, "num_labels": 2}
    kind = LongspanForImageClassification
    model = kind(kind.configured(dim=8, heads=2, depth=1, stem=4, **of_data))
    found = {id(each) for each in matrices_of(model)}
    assert {id(layer.weight) for layer in model.longspan.embeddings.convolutions} < found


def test_it_takes_the_matrices_of_the_layers_alone() -> None:
    shape: dict[str, Any] = {"vocab_size": 20, "dim": 8, "heads": 2, "depth": 2, "share_layers": True}
    model = LongspanForSeq2SeqLM(
        LongspanForSeq2SeqLM.configured(
            **shape, mixers=["recurrent"], short_convolution=3, decoder_mixers=["softmax"], decoder_start_token_id=1
        )
    )
    model.get_decoder().backbone.blocks[0].feed_forward.requires_grad_(False)
    found = {id(each) for each in matrices_of(model)}
    names = sorted(name for name, each in model.named_parameters() if id(each) in found)
    decoder = [f"decoder.backbone.blocks.0.{part}" for part in ("cross_mixer", "mixer")]
    encoder = "longspan.backbone.blocks.0."
    assert names == sorted(
        [
            *(f"{part}.{kind}.weight" for part in decoder for kind in ("key", "output", "query", "value")),
            *(f"{encoder}feed_forward.{number}.weight" for number in (0, 2)),
            *(name for name in names if name.startswith(f"{encoder}mixer.")),
        ]
    )
    assert not any("recurrent.weight" in name or "convolution" in name for name in names)


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    """Of a language model with tables of n-grams, so that there are three optimizers."""
    words = ["the", "cat", "sat", "on", "mats", "and", "saw", "a", "dog"] * 20
    (tmp_path / "text.txt").write_text(" ".join(words), encoding="utf-8")
    (tmp_path / "recipe.toml").write_text(
        f"""
        task = "language_modelling"
        [data]
        path = "{tmp_path / "text.txt"}"
        tokens = "characters"
        validation_fraction = 0.2
        test_fraction = 0.2
        [model]
        dim = 8
        depth = 1
        heads = 2
        ngrams = [2]
        ngram_buckets = 50
        [training]
        segment_length = 16
        per_device_train_batch_size = 2
        max_steps = 6
        optim = "muon"
        layer_decay = 0.5
        """
    )
    return recipes.load(str(tmp_path / "recipe.toml"))


@pytest.mark.slow
def test_training_goes_on_as_if_never_stopped(recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[Any] = []
    usual = Muon.step

    def step(self: Muon) -> None:
        taken.append(copy.copy(self.param_groups))
        usual(self)

    monkeypatch.setattr(Muon, "step", step)
    train(recipe, run=tmp_path / "whole", progress=False)
    assert len(taken) == 6
    assert [len(group["params"]) for group in taken[0]] == [5]
    assert 'optim = "muon"' in (tmp_path / "whole" / "recipe.toml").read_text()
    interrupted(recipe, tmp_path / "run", 3)
    train(recipe, run=tmp_path / "run", resume=True, progress=False)
    same_result(tmp_path / "run", tmp_path / "whole")


def test_matrices_in_parts_are_refused(recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "IN_PARTS", (DistributedType.NO,))
    with pytest.raises(UserError, match=r"whole weights in each process for training.optim=muon, got weights sharded"):
        train(recipe, run=tmp_path / "run", progress=False)
