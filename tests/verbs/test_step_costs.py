"""Costs of steps: exact where the cost is of the assumed form, and never below what was measured for memory."""

import pytest

from longspan import recipes
from longspan.verbs.cells import cheaper_from, fitting
from longspan.verbs.trials import Load, StepCost, covering, fitted

LOADS = [Load(rows * length, rows * length**2) for rows, length in ((8, 16), (4, 64), (2, 256), (1, 300))]


@pytest.mark.parametrize("cost", [StepCost(0.1, 1e-4, 0.0), StepCost(0.1, 1e-4, 1e-6), StepCost(0.0, 2e-4, 0.0)])
def test_costs_of_the_assumed_form_are_found(cost: StepCost) -> None:
    found = fitted(LOADS, [cost(load) for load in LOADS], quadratic=True)
    far = Load(8192, 8192**2)
    # Rounding of least squares with three columns.
    assert found(far) == pytest.approx(cost(far), rel=1e-6)


def test_no_part_of_a_cost_is_negative() -> None:
    found = fitted(LOADS, [3.0, 2.0, 1.0, 0.5], quadratic=True)
    assert min(found.fixed, found.each, found.pair) >= 0
    # Linear mixers have no quadratic part, whatever was measured.
    assert fitted(LOADS, [load.pairs for load in LOADS], quadratic=False).pair == 0


def test_one_size_is_extrapolated_in_proportion() -> None:
    load = Load(100, 1000)
    assert fitted([load], [2.0], quadratic=False)(load.times(3)) == pytest.approx(6)
    assert fitted([load, load], [2.0, 2.0], quadratic=True)(Load(200, 4000)) == pytest.approx(8)


def test_memory_is_never_below_what_was_measured() -> None:
    costs = [1000.0, 5000.0, 4000.0, 9000.0]
    found = covering(LOADS, costs, quadratic=True)
    # Up to rounding.
    assert all(found(load) >= cost * (1 - 1e-9) for load, cost in zip(LOADS, costs, strict=True))


def test_the_length_from_which_a_mixer_is_cheaper() -> None:
    recipe = recipes.load("classify")
    linear, quadratic = StepCost(0.0, 1e-5, 0.0), StepCost(0.0, 0.0, 1e-8)
    # 1e-5 = 1e-8 * length; lengths are tried a quarter of a doubling apart.
    assert cheaper_from(linear, quadratic, recipe) == pytest.approx(1000, rel=0.2)
    assert cheaper_from(StepCost(0.0, 1e-9, 0.0), quadratic, recipe) == 0
    assert cheaper_from(StepCost(0.0, 1.0, 0.0), StepCost(0.0, 0.5, 0.0), recipe) is None


def test_suggestions_are_words_of_recipes_that_fit() -> None:
    recipe = recipes.load("classify", ["data.max_length=1024"])
    # A batch of 32,768 tokens, in rows of 1,024.
    largest = Load(32768, 32768 * 1024)

    def found(memory: int) -> tuple[list[str], bool]:
        told = fitting("additive", recipe, "data.max_length", 1024, largest, lambda load: load.positions, memory)
        # `longspan train` takes them.
        recipes.load("classify", told.overrides)
        return list(told.overrides), told.needed

    batch, more = "training.per_device_train_batch_size", "training.gradient_accumulation_steps"
    size = recipe.training["per_device_train_batch_size"]
    assert found(32768) == ([f"{batch}={size}"], False)
    assert found(70000) == ([f"{batch}={2 * size}"], False)
    assert found(9000) == ([f"{batch}={size // 4}", f"{more}=4"], True)
    assert found(300) == (["data.max_length=256", f"{batch}=1"], True)
    assert found(0) == ([], True)
