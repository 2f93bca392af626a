"""Tables of n-grams in training: gradients and steps for the rows that a batch reads, and nothing for the others."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import DistributedType
from interruptions import interrupted
from safetensors.torch import load_file
from torch import Tensor
from torch.optim import AdamW
from transformers import TrainingArguments

from longspan import LongspanForCausalLM, LongspanForSequenceClassification, recipes, train
from longspan.errors import UserError
from longspan.models.parts.ngrams import NgramEmbedding
from longspan.training import base
from longspan.training.base import LongspanTrainer
from longspan.training.optimizers import Joined, RowwiseAdam, apart, clip_gradients, tables_of


def model(**changes: Any) -> LongspanForCausalLM:
    torch.manual_seed(3)
    shape: dict[str, Any] = {"vocab_size": 23, "dim": 8, "heads": 2, "depth": 1, "causal": True, "dropout": 0.0}
    return LongspanForCausalLM(
        LongspanForCausalLM.configured(**shape | {"ngrams": [2, 3], "ngram_buckets": 500} | changes)
    )


def ids(seed: int) -> Tensor:
    return torch.randint(1, 23, (2, 9), generator=torch.Generator().manual_seed(seed))


def optimizer(each: LongspanForCausalLM, folder: Path, sparse: bool = True) -> Any:
    arguments = TrainingArguments(str(folder), learning_rate=0.1, adam_beta2=0.9, use_cpu=True, report_to=[])
    dense = AdamW(each.parameters(), lr=0.1)
    return Joined({"dense": dense, "tables": apart(tables_of(each), dense, arguments, sparse=sparse)})


def step(each: LongspanForCausalLM, steps: Any, seed: int, most: float = 1e9) -> Tensor:
    each(ids(seed), labels=ids(seed)).loss.backward()
    norm = clip_gradients(each.parameters(), most)
    steps.step()
    steps.zero_grad()
    return norm


def test_a_row_moves_by_the_formula_when_it_is_read() -> None:
    table = NgramEmbedding([2], 6, 3)
    table.sparse = True
    steps, moments, counts = RowwiseAdam([table.weight], lr=0.1, beta=0.9, eps=1e-8), torch.zeros(6), torch.zeros(6)
    expected = table.weight.detach().clone()
    for number in range(4):
        rows = torch.tensor([[1, 2, 1], [5, 1, 0], [2, 2, 2], [4, 3, 1]])[number]
        upstream = torch.randn(3, 3)
        found = torch.nn.functional.embedding(rows, table.weight, 0, sparse=True)
        found.backward(upstream)
        assert table.weight.grad is not None
        assert table.weight.grad.is_sparse
        steps.step()
        steps.zero_grad()
        for row in {*rows.tolist()} - {0}:
            gradient = upstream[rows == row].sum(0)
            counts[row] += 1
            moments[row] = 0.9 * moments[row] + 0.1 * (gradient**2).mean()
            expected[row] -= 0.1 * gradient / ((moments[row] / (1 - 0.9 ** counts[row])).sqrt() + 1e-8)
    torch.testing.assert_close(table.weight.detach(), expected)


def test_what_is_not_read_stays_and_costs_nothing(tmp_path: Path) -> None:
    each = model()
    steps = optimizer(each, tmp_path)
    table = each.longspan.embeddings.ngrams.weight
    # The last token of a row has nothing to predict.
    read = each.longspan.embeddings.ngrams.buckets(torch.nn.functional.pad(ids(0)[:, :-1], (2, 0), value=-1)).unique()
    step(each, steps, 0)
    step(each, steps, 0)
    moved = table.detach().abs().sum(1).nonzero().flatten()
    assert {*moved.tolist()} == {*read.tolist()} - {0}
    # Two numbers for each row, not two tables.
    assert sum(value.numel() for value in steps.parts["tables"].state[table].values()) == 2 * len(table)
    assert all(table is not other for group in steps.parts["dense"].param_groups for other in group["params"])


def test_steps_with_dense_gradients_are_those_with_sparse_ones(tmp_path: Path) -> None:
    sparse, dense = model(), model()
    tables = [each.longspan.embeddings.ngrams.weight for each in (sparse, dense)]
    steps = optimizer(sparse, tmp_path), optimizer(dense, tmp_path, sparse=False)
    for seed in (0, 1, 0):
        step(sparse, steps[0], seed)
        step(dense, steps[1], seed)
    for one, other in zip(sparse.parameters(), dense.parameters(), strict=True):
        # Rows that were read twice are added in another order.
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    # N-grams that end a row predict nothing: they are read, but their gradient is zero.
    found, wanted = (each.parts["tables"].state[table]["count"] for each, table in zip(steps, tables, strict=True))
    ends = sparse.longspan.embeddings.ngrams.buckets(torch.cat([ids(0)[:, -3:], ids(1)[:, -3:]])).unique()
    same = torch.ones(len(found), dtype=torch.bool).index_fill(0, ends, False)
    assert torch.equal(found[same], wanted[same])
    assert found.max() == 2


def test_gradients_are_clipped_as_dense_ones() -> None:
    sparse, dense = model(), model()
    tables_of(sparse)[0].sparse = True
    for most in (1e9, 0.01, float("inf")):
        for each in (sparse, dense):
            each.zero_grad()
            each(ids(1), labels=ids(1)).loss.backward()
        norm = clip_gradients(sparse.parameters(), most)
        torch.testing.assert_close(norm, torch.nn.utils.clip_grad_norm_(dense.parameters(), most))
        for one, other in zip(sparse.parameters(), dense.parameters(), strict=True):
            torch.testing.assert_close(one.grad.to_dense(), other.grad)


def test_schedules_and_checkpoints_reach_both(tmp_path: Path) -> None:
    each = model()
    steps = optimizer(each, tmp_path)
    schedule = torch.optim.lr_scheduler.LambdaLR(steps, lambda number: 0.5**number)
    step(each, steps, 0)
    schedule.step()
    assert [group["lr"] for group in (*steps.parts["dense"].param_groups, *steps.parts["tables"].param_groups)] == [
        0.05,
        0.05,
    ]
    other = copy.deepcopy(each)
    resumed = optimizer(other, tmp_path)
    torch.save(steps.state_dict(), tmp_path / "optimizer.pt")
    resumed.load_state_dict(torch.load(tmp_path / "optimizer.pt", weights_only=True))
    again = torch.optim.lr_scheduler.LambdaLR(resumed, lambda number: 0.5**number)
    again.load_state_dict(schedule.state_dict())
    for group, known in zip(resumed.param_groups, steps.param_groups, strict=True):
        group["lr"] = known["lr"]
    for one, its, its_schedule in ((each, steps, schedule), (other, resumed, again)):
        step(one, its, 1, most=0.1)
        its_schedule.step()
        step(one, its, 2)
    for one, two in zip(each.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)
    # A schedule after a load reaches both optimizers too.
    assert {group["lr"] for group in resumed.parts["tables"].param_groups} == {0.025}


def test_what_the_dense_one_has_is_found(tmp_path: Path) -> None:
    steps = optimizer(model(), tmp_path)
    steps.parts["dense"].train = lambda: "training"
    assert steps.train() == "training"
    with pytest.raises(AttributeError):
        steps.nothing_of_the_kind  # noqa: B018


@pytest.mark.parametrize("cutoffs", [None, [10]])
def test_tables_of_tokens_beside_a_wide_part(cutoffs: list[int] | None) -> None:
    shape: dict[str, Any] = {"vocab_size": 23, "dim": 8, "heads": 2, "depth": 1, "num_labels": 2, "cutoffs": cutoffs}
    assert tables_of(LongspanForSequenceClassification(LongspanForSequenceClassification.configured(**shape))) == []
    wide = LongspanForSequenceClassification(
        LongspanForSequenceClassification.configured(**shape, wide=True, wide_buckets=4)
    )
    # Clusters of tokens are no single table.
    assert tables_of(wide) == ([wide.longspan.embeddings.table] if cutoffs is None else [])
    wide.longspan.embeddings.requires_grad_(False)
    assert tables_of(wide) == []


@pytest.fixture
def language(tmp_path: Path) -> Any:
    """A recipe with n-grams, whose training is stopped in the middle of a step in `tmp_path / "run"`."""
    words = ["the", "cat", "sat", "on", "mats", "and", "saw", "a", "dog"] * 20
    (tmp_path / "text.txt").write_text(" ".join(words), encoding="utf-8")
    (tmp_path / "recipe.toml").write_text(
        f"""
        task = "language_modelling"
        [data]
        path = "{tmp_path / "text.txt"}"
        tokens = "characters"
        validation_fraction = 0.2
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
        """
    )
    recipe = recipes.load(str(tmp_path / "recipe.toml"))
    interrupted(recipe, tmp_path / "run", 3)
    return recipe


@pytest.mark.slow
def test_a_training_goes_on_where_gradients_are_dense(
    language: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(language, run=tmp_path / "whole", progress=False)
    monkeypatch.setattr(LongspanTrainer, "_sparse", lambda self: False)
    train(language, run=tmp_path / "run", resume=True, progress=False)
    found, wanted = (load_file(tmp_path / run / "model.safetensors") for run in ("run", "whole"))
    for name, tensor in wanted.items():
        # In float32, Adam makes up to a whole step of 0.001 of what rounding leaves of gradients that are zero.
        torch.testing.assert_close(found[name], tensor, rtol=1e-5, atol=1e-5, msg=name)


def test_the_state_of_another_optimizer_is_a_sentence(
    language: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "IN_PARTS", (DistributedType.NO,))
    with pytest.raises(UserError, match=r"expected the state of this run's optimizer in .*checkpoint-4, got that of"):
        train(language, run=tmp_path / "run", resume=True, progress=False)
