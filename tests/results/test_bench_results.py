import json

import pytest

from longspan.report.bench import bench_summary
from longspan.results.bench import Benchmark, Crossing, Measurement


def benchmark(**times: list[float]) -> Benchmark:
    """Return the times of mixers at 100, 200, 400, ... positions."""
    rows = [
        Measurement(name, 100 * 2**place, 100 * 2**place, seconds, seconds, seconds, 3, 1 << 20, 10**9, 10**6, 0.5)
        for name, seconds_of in times.items()
        for place, seconds in enumerate(seconds_of)
    ]
    return Benchmark({"dtype": "float32"}, 1e9, 1e9, {}, rows)


@pytest.mark.parametrize(
    ("linear", "softmax", "expected"),
    [
        ([1, 2, 4], [2, 4, 8], Crossing("always", 100)),
        ([3, 6, 12], [1, 2, 4], Crossing("never", 400)),
        # Faster once, but not to the end.
        ([1, 2, 4], [2, 1, 3], Crossing("never", 400)),
        # Softmax was left out at the longest.
        ([3, 6, 12], [1, 2], Crossing("never", 200)),
        ([3, 6], [], Crossing("unknown")),
    ],
)
def test_crossings_at_measured_lengths(linear: list[float], softmax: list[float], expected: Crossing) -> None:
    assert benchmark(linear=linear, softmax=softmax).crossing("linear") == expected


def test_a_crossing_is_interpolated_on_logarithmic_scales() -> None:
    # Linear and quadratic times, equal at 300.
    lengths = [100, 200, 400, 800]
    found = benchmark(linear=[300 * n for n in lengths], softmax=[n * n for n in lengths]).crossing("linear")
    assert found.kind == "from"
    assert found.length == pytest.approx(300)


def test_json_and_tables_say_what_was_left_out_and_what_is_not_finite() -> None:
    measured = benchmark(linear=[1.0], softmax=[2.0])
    odd = [
        Measurement("softmax", 200, 200, left_out="left out: not enough memory."),
        Measurement("linear", 200, 200, 1.0, 1.0, 1.0, 1, 0, 1, 1, 0.5, finite=False),
    ]
    result = Benchmark(measured.settings, 1e9, 1e9, {}, [*measured.measurements, *odd])
    text = bench_summary(result)
    assert "softmax at 200: left out: not enough memory." in text
    assert "linear at 200: outputs or gradients that are not finite." in text
    assert "linear is faster than softmax at every measured length, from 100 on." in text
    found = json.loads(json.dumps(result.to_dict()))
    assert found["measurements"][0]["distance_to_floor"] == 2.0
    assert found["measurements"][0]["tokens_per_second"] == 100.0
    assert found["faster_than_softmax"] == {"linear": {"kind": "always", "length": 100}}


def test_a_row_of_the_table_is_one_line() -> None:
    # About the longest name of a mixer, and times near the default time budget.
    row = Measurement("bounded_memory", 65536, 65536, 2.987, 2.876, 3.012, 7, 1 << 33, 10**14, 10**12, 5.0)
    text = bench_summary(Benchmark({"dtype": "float32"}, 1e9, 1e9, {}, [row]))
    assert text.count("bounded_memory") == 1
    assert "2,876 to 3,012" in text
