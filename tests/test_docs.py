"""What the pages say is what the code says."""

import runpy
import shlex
from pathlib import Path

import pytest

from longspan import recipes
from longspan.cli import build_parser
from longspan.testing.tasks import PROMISES

DOCS = Path(__file__).parents[1] / "docs"


def test_the_figure_of_the_architecture_is_the_code() -> None:
    drawn = runpy.run_path(str(DOCS / "architecture.py"))["drawn"]
    assert drawn() == (DOCS / "images" / "architecture.svg").read_text(encoding="utf-8"), "run `make docs`"


def test_the_mechanisms_page_is_up_to_date() -> None:
    page = runpy.run_path(str(DOCS / "mechanisms.py"))["page"]()
    assert (DOCS / "mechanisms.md").read_text(encoding="utf-8") == page, "run `make docs`"


@pytest.mark.parametrize(
    ("page", "number"),
    [
        ("labels.md", 7),
        ("pairs.md", 3),
        ("encoder.md", 5),
        ("question-answering.md", 3),
        ("recommendation.md", 12),
        ("translation.md", 5),
        ("summarisation.md", 4),
        ("audio.md", 3),
        ("frames.md", 3),
        ("images.md", 4),
    ],
)
def test_the_commands_have_the_keys_they_name(page: str, number: int) -> None:
    lines = (DOCS / page).read_text(encoding="utf-8").splitlines()
    commands = [shlex.split(line) for line in lines if line.startswith("longspan train")]
    assert len(commands) == number
    _, verbs = build_parser()
    for _, verb, *arguments in commands:
        given = verbs[verb].parse_intermixed_args(arguments)
        recipes.load(given.recipe, given.overrides).require_data()


def test_every_promise_has_a_row() -> None:
    lines = (DOCS / "promises.md").read_text(encoding="utf-8").splitlines()
    rows = [line.split("|")[1].strip() for line in lines if line.startswith("| ")]
    assert [row for row in rows if row in PROMISES] == list(PROMISES)
