"""Which tokens speak for the next one."""

from pathlib import Path

import pytest
from language_runs import make_run

from longspan import explain
from longspan.errors import UserError

TEXT = "abcd abca abdc dcba " * 8


@pytest.mark.slow
@pytest.mark.parametrize("mixer", ["additive", "softmax"])
@pytest.mark.parametrize("carried", [True, False])
def test_earlier_tokens_explain_the_next_one(tmp_path: Path, mixer: str, carried: bool) -> None:
    run = make_run(tmp_path / "run", TEXT, mixer, carry_states=carried)
    found = explain(run, ["abcd ab"])
    assert found.where.endswith(", token 8")
    assert sum(found.prediction["probabilities"].values()) == pytest.approx(1, abs=1e-4)
    best = max(found.prediction["probabilities"], key=lambda name: found.prediction["probabilities"][name])
    assert found.of == best
    # The end token before the text has no characters.
    assert [piece.text for piece in found.pieces()] == ["abcd", "ab"]
    inside = explain(run, ["abcd ab"], at=3)
    assert (inside.of, len(inside.pieces())) == ("c", 1)
    assert inside.pieces()[0].text == "abcd"
    assert explain(run, ["abcd ab"], at=5).of == "' '"
    assert explain(run, ["abcd ab"], of="d").of == "d"


def test_only_what_is_read_of_a_long_text_is_explained(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", TEXT, "additive", carry_states=False)
    found = explain(run, [TEXT])
    assert (found.prediction["tokens_read"], found.prediction["tokens_total"]) == (8, len(TEXT) + 1)
    assert "Only 8 of 161 positions were read." in found.page()


def test_places_and_tokens_that_are_not_there(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", TEXT)
    for wrong, said in (
        ({"at": 9}, "expected the number of a token, from 1 to 8, got 9"),
        ({"at": 1.5}, "got 1.5"),
        ({"of": "ab"}, "expected one token of the model, got 'ab', which is 2"),
    ):
        with pytest.raises(UserError, match=said):
            explain(run, ["abcd ab"], **wrong)
    with pytest.raises(UserError, match="got no text"):
        explain(run, [{"text": " "}])
