"""Costs of steps: exact where the cost is of the assumed form, and never below what was measured for memory."""

import numpy as np
import pytest

from longspan import recipes
from longspan.verbs.plan import cheaper_from, covering, fitted, fitting

LOADS = np.array([[1.0, rows * size, rows * size**2] for rows, size in ((8, 16), (4, 64), (2, 256), (1, 300))])


@pytest.mark.parametrize("weights", [(0.1, 1e-4, 0.0), (0.1, 1e-4, 1e-6), (0.0, 2e-4, 0.0)])
def test_costs_of_the_assumed_form_are_found(weights: tuple[float, ...]) -> None:
    # Rounding of least squares with three columns, one of which is far larger in what is extrapolated.
    far = np.array([1, 8192, 8192**2])
    assert far @ fitted(LOADS, LOADS @ weights, quadratic=True) == pytest.approx(far @ weights, rel=1e-6)


def test_no_part_of_a_cost_is_negative() -> None:
    assert (fitted(LOADS, np.array([3.0, 2.0, 1.0, 0.5]), quadratic=True) >= 0).all()
    # Linear mixers have no quadratic part, whatever was measured.
    assert fitted(LOADS, LOADS[:, 2], quadratic=False)[2] == 0


def test_one_size_is_extrapolated_in_proportion() -> None:
    load = np.array([[1.0, 100, 1000]])
    assert [1, 300, 3000] @ fitted(load, np.array([2.0]), quadratic=False) == pytest.approx(6)
    assert [1, 200, 4000] @ fitted(load.repeat(2, 0), np.array([2.0, 2.0]), quadratic=True) == pytest.approx(8)


def test_memory_is_never_below_what_was_measured() -> None:
    costs = np.array([1000.0, 5000.0, 4000.0, 9000.0])
    # Up to rounding.
    assert (LOADS @ covering(LOADS, costs, quadratic=True) >= costs * (1 - 1e-9)).all()


def test_the_length_from_which_a_mixer_is_cheaper() -> None:
    recipe = recipes.load("classify")
    linear, quadratic = np.array([0, 1e-5, 0]), np.array([0, 0, 1e-8])
    # 1e-5 = 1e-8 * length; lengths are tried a quarter of a doubling apart.
    assert cheaper_from(linear, quadratic, recipe) == pytest.approx(1000, rel=0.2)
    assert cheaper_from(np.array([0, 1e-9, 0]), quadratic, recipe) == 0
    assert cheaper_from(np.array([0, 1.0, 0]), np.array([0, 0.5, 0]), recipe) is None


def test_suggestions_are_words_of_recipes_that_fit() -> None:
    recipe = recipes.load("classify", ["data.max_length=1024"])
    # A batch of 32,768 tokens, in rows of 1,024.
    largest = np.array([1, 32768, 32768 * 1024])

    def found(memory: int) -> tuple[list[str], bool]:
        told = fitting("additive", recipe, "data.max_length", 1024, largest, lambda load: load[1], memory)
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
