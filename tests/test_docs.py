"""The pages that are made from the code say what the code says."""

import runpy
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"


def test_the_mechanisms_page_is_up_to_date() -> None:
    page = runpy.run_path(str(DOCS / "mechanisms.py"))["page"]()
    assert (DOCS / "mechanisms.md").read_text(encoding="utf-8") == page, "run `make docs`"
