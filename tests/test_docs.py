"""What the pages say is what the code says."""

import runpy
import shlex
from pathlib import Path

import pytest

from longspan import recipes

DOCS = Path(__file__).parents[1] / "docs"


def test_the_mechanisms_page_is_up_to_date() -> None:
    page = runpy.run_path(str(DOCS / "mechanisms.py"))["page"]()
    assert (DOCS / "mechanisms.md").read_text(encoding="utf-8") == page, "run `make docs`"


@pytest.mark.parametrize(("page", "number"), [("labels.md", 7), ("encoder.md", 5), ("question-answering.md", 3)])
def test_the_commands_have_the_keys_they_name(page: str, number: int) -> None:
    lines = (DOCS / page).read_text(encoding="utf-8").splitlines()
    commands = [shlex.split(line) for line in lines if line.startswith("longspan train")]
    assert len(commands) == number
    for _, _, name, *overrides in commands:
        recipes.load(name, overrides).require_data()
