"""Scores of a model's parts, their intervals, and what is said about them."""

import json
import math

import numpy as np
import pytest

from longspan.errors import UserError
from longspan.results.parts import NAMES, Parts, compare_parts, describe_parts, mean_of, told_of_mixers


def mean(sums):
    return sums[..., 0] / sums[..., 1]


def parts_of(values, gains=None, *, score="accuracy", higher=True, width=0.01):
    """Return parts with these values of counts, network and both, and these intervals of their gains."""
    named = dict(zip(NAMES, values, strict=True))
    return Parts(
        score,
        higher,
        named,
        {name: (value - width, value + width) for name, value in named.items()},
        dict(zip(NAMES[:2], gains or ((0.001, 0.02), (0.01, 0.03)), strict=True)),
    )


def short(value):
    return f"{value:.3f}"


def test_intervals_of_a_mean_are_those_of_the_normal_approximation():
    """1.96 standard errors on either side, for each part and for the paired differences."""
    random = np.random.default_rng(3)
    count = 4000
    numbers = {name: random.normal(shift, 1, count) for name, shift in zip(NAMES, (0.0, 0.1, 0.3), strict=True)}
    examples = {name: np.stack([found, np.ones(count)], -1) for name, found in numbers.items()}
    found = compare_parts("mean", True, examples, mean)

    def close(interval, sample):
        middle, error = sample.mean(), sample.std() / count**0.5
        # The 2.5 % point of 1,000 draws has a standard error of 0.085 of the standard deviation of what is drawn
        # (sqrt(0.025 · 0.975 / 1000) over the density there, 0.058): four of these.
        assert interval == pytest.approx((middle - 1.96 * error, middle + 1.96 * error), abs=0.34 * error)

    for name, sample in numbers.items():
        assert found.values[name] == pytest.approx(sample.mean())
        close(found.intervals[name], sample)
    for name in NAMES[:2]:
        close(found.gains[name], numbers["both"] - numbers[name])
        assert found.gain(name) == pytest.approx((numbers["both"] - numbers[name]).mean())
    lower = compare_parts("mean", False, examples, mean)
    assert lower.gain("counts") == -found.gain("counts")
    low, high = found.gains["counts"]
    # The same draws, mirrored.
    assert lower.gains["counts"] == pytest.approx((-high, -low))


def test_a_ratio_of_sums_is_not_a_mean_of_ratios():
    """Documents have different numbers of words, and only their sums give the score."""
    right, words = np.array([1.0, 90.0, 2.0]), np.array([10.0, 100.0, 4.0])
    examples = {name: np.stack([right, words], -1) for name in NAMES}
    assert compare_parts("accuracy", True, examples, mean).values["both"] == pytest.approx(93 / 114)


def test_the_same_draws_each_time():
    examples = {name: np.random.default_rng(0).random((30, 2)) + 1 for name in NAMES}
    assert compare_parts("a", True, examples, mean) == compare_parts("a", True, examples, mean)


def test_a_part_that_changes_nothing_is_told_from_a_tie_by_chance():
    right = np.array([1, 1, 0, 0, 1, 0] * 10, dtype=float)
    ones = np.ones_like(right)

    def found(both):
        rows = {"counts": right, "network": np.roll(right, 1), "both": both}
        return compare_parts("accuracy", True, {name: np.stack([row, ones], -1) for name, row in rows.items()}, mean)

    same = found(right)
    assert same.gains["counts"] == (0, 0)
    assert same.equals_both("counts")
    # As many right, but other ones.
    tie = found(right[::-1].copy())
    assert tie.values["both"] == tie.values["counts"]
    low, high = tie.gains["counts"]
    assert low < 0 < high
    assert not tie.equals_both("counts")
    assert same.best() == tie.best() == "both"
    assert "The count-based part alone gives the same results" in describe_parts(same, "accuracy", short)
    assert "not significant" in describe_parts(tie, "accuracy", short)


def test_they_survive_json():
    found = parts_of((0.8, 0.7, 0.81))
    written = found.to_dict()
    assert Parts.from_dict(json.loads(json.dumps(written))) == found
    assert json.loads(json.dumps(written)) == written


@pytest.mark.parametrize(
    "damage",
    [
        lambda values: values.pop("score"),
        lambda values: values.pop("gains"),
        lambda values: values["values"].pop("network"),
        lambda values: values["values"].update(network="much"),
        lambda values: values["intervals"].update(both=[0.1]),
        lambda values: values["gains"].update(counts=0.3),
        lambda values: values.update(intervals=[1, 2]),
    ],
)
def test_damaged_ones_are_refused(damage):
    values = parts_of((0.8, 0.7, 0.81)).to_dict()
    damage(values)
    with pytest.raises(UserError, match=r"scores of a model's parts \(counts, network, both\), got damaged ones"):
        Parts.from_dict(values)


def test_the_form_of_older_runs_is_refused():
    with pytest.raises(UserError, match="score the model again"):
        Parts.from_dict({"wide": 0.8, "deep": 0.7, "both": 0.81})


def test_the_mean_of_seeds():
    one, two = parts_of((0.8, 0.6, 0.9), ((0.05, 0.15), (0.2, 0.4))), parts_of((0.8, 0.7, 0.8), ((0, 0), (0.0, 0.2)))
    found = mean_of([one, two])
    assert found.values == pytest.approx({"counts": 0.8, "network": 0.65, "both": 0.85})
    assert found.intervals["both"] == pytest.approx((0.84, 0.86))
    assert found.gains["counts"] == pytest.approx((0.025, 0.075))
    # The network changed nothing in one of the runs only.
    assert not found.equals_both("counts")
    assert mean_of([two, two]).equals_both("counts")
    assert mean_of([one]) == one


@pytest.mark.parametrize(
    ("parts", "word", "expected"),
    [
        (
            parts_of((0.860, 0.850, 0.872), ((0.004, 0.020), (0.01, 0.03))),
            "accuracy",
            "Counts and network together are best (accuracy 0.872): better than the counts alone by 0.012 (95 % "
            "interval 0.004 to 0.020, significant). The counts do most of the work.",
        ),
        (
            # Lower is better: both have 0.1 less than the network.
            parts_of((2.0, 1.5, 1.4), ((0.4, 0.8), (-0.05, 0.25)), score="loss", higher=False),
            "loss",
            "Counts and network together are best (loss 1.400): better than the network alone by 0.100 (95 % interval "
            "-0.050 to 0.250, not significant). The network does most of the work.",
        ),
        (
            parts_of((0.86, 0.60, 0.84), ((-0.03, -0.01), (0.1, 0.3))),
            "accuracy",
            "The counts alone are best (accuracy 0.860): better than counts and network together by 0.020 (95 % "
            "interval 0.010 to 0.030, significant). The counts do most of the work.",
        ),
        (
            parts_of((2.0, 1.4, 1.5), ((0.4, 0.8), (-0.25, 0.05)), score="loss", higher=False),
            "loss",
            "The network alone is best (loss 1.400): better than counts and network together by 0.100 (95 % interval "
            "-0.050 to 0.250, not significant). The network does most of the work.",
        ),
        (
            parts_of((0.8, 0.8, 0.9), ((0.05, 0.15), (0.05, 0.15))),
            "accuracy",
            "Counts and network together are best (accuracy 0.900): better than the counts alone by 0.100 (95 % "
            "interval 0.050 to 0.150, significant). Alone, both parts are equally good.",
        ),
        (
            parts_of((0.438, 0.4, 0.438), ((0, 0), (-0.01, 0.1))),
            "accuracy",
            "The count-based part alone gives the same results (accuracy 0.438); the network adds nothing on these "
            "data.",
        ),
        (
            parts_of((0.2, 0.4, 0.4), ((0.1, 0.3), (0, 0))),
            "accuracy",
            "The network alone gives the same results (accuracy 0.400); the counts add nothing on these data.",
        ),
        (
            parts_of((1.0, 1.0, 1.0), ((0, 0), (0, 0))),
            "accuracy",
            "The counts and the network give the same results (accuracy 1.000).",
        ),
    ],
)
def test_what_is_said(parts, word, expected):
    assert describe_parts(parts, word, short) == expected


def test_mixers_that_only_count_are_said_to():
    """Known failure: a comparison showed equal scores of all mixers and did not say why."""
    mixers = {
        "additive": parts_of((0.438, 0.30, 0.438), ((0, 0), (0, 0.2))),
        "softmax": parts_of((0.438, 0.35, 0.438), ((0, 0), (0, 0.2))),
    }
    assert told_of_mixers(mixers, "accuracy", short) == (
        "All mixers have the same accuracy, 0.438: the counts alone decide, and no network changes a result. The best "
        "network alone is that of softmax (accuracy 0.350)."
    )


def test_the_best_mixer_and_the_best_network():
    idle = parts_of((0.80, 0.50, 0.80), ((0, 0), (0.2, 0.4)))
    mixers = {
        "additive": parts_of((0.80, 0.84, 0.86), ((0.02, 0.1), (0.01, 0.03)), width=0.02),
        "softmax": parts_of((0.80, 0.85, 0.855), ((0.02, 0.09), (-0.01, 0.02)), width=0.02),
        "recurrent": idle,
    }
    assert told_of_mixers(mixers, "accuracy", short) == (
        "additive is best (accuracy 0.860 with both parts). That may be chance: the intervals of additive and softmax "
        "overlap. In additive, counts and network together are best (accuracy 0.860): better than the network alone "
        "by 0.020 (95 % interval 0.010 to 0.030, significant). The network does most of the work. In recurrent, the "
        "counts alone decide. The best network alone is that of softmax (accuracy 0.850)."
    )
    # Of losses the lowest is best.
    losses = {
        "additive": parts_of((1.9, 1.5, 1.4), score="loss", higher=False),
        "softmax": parts_of((1.9, 1.3, 1.2), score="loss", higher=False),
    }
    found = told_of_mixers(losses, "loss", short)
    assert found.startswith("softmax is best (loss 1.200 with both parts). In softmax, counts and network together")
    assert "chance" not in found
    assert found.endswith("The best network alone is that of softmax (loss 1.300).")
    one = {"additive": mixers["additive"]}
    assert told_of_mixers(one, "accuracy", short) == describe_parts(mixers["additive"], "accuracy", short)


def test_mixers_equal_as_far_as_tables_show():
    mixers = {name: parts_of((0.8, 0.7, 0.9 + shift)) for name, shift in (("additive", 0), ("softmax", 1e-5))}
    found = told_of_mixers(mixers, "accuracy", short)
    assert found.startswith("additive and softmax are best (accuracy 0.900 with both parts). In additive, ")
    assert found.endswith("All networks alone are equally good (accuracy 0.700).")


def test_no_score_of_a_draw_is_not_the_end():
    """A measure may have no value for a few draws, such as F1 without a span."""
    examples = {name: np.array([[1.0, 1.0], [0.0, 0.0]]) for name in NAMES}

    def measure(sums):
        with np.errstate(invalid="ignore"):
            return mean(sums)

    found = compare_parts("F1", True, examples, measure)
    assert found.intervals["both"] == (1, 1)
    assert not any(math.isnan(end) for ends in found.gains.values() for end in ends)
