"""What labels and file names hold reaches terminals and pages as text alone."""

import json

from longspan.machine.printing import code_names, json_text, markdown_cell, printable_lines
from longspan.report import table

HOSTILE = "\x1b[31mred\x9b0m\r<script>x</script>|`a`\n\u202eend"


def test_terminals_get_no_control_characters() -> None:
    shown = printable_lines(HOSTILE)
    assert "\x1b" not in shown
    assert shown.splitlines() == [r"\x1b[31mred\x9b0m\r<script>x</script>|`a`", r"\u202eend"]
    assert printable_lines("é 漢 😀") == "é 漢 😀"


def test_json_reads_back_and_has_no_control_characters() -> None:
    written = json_text({"label": HOSTILE})
    assert json.loads(written) == {"label": HOSTILE}
    assert written.isprintable()


def test_tables_keep_their_rows() -> None:
    plain = table(["class", "n"], [[HOSTILE, "1"]])
    assert len(plain.splitlines()) == 3
    page = table(["class", "n"], [[HOSTILE, "1"]], "github")
    assert len(page.splitlines()) == 3
    assert "<script>" not in page
    assert r"\|" in page
    assert markdown_cell("a & b") == "a &amp; b"


def test_names_are_code() -> None:
    assert code_names(["cat", "dog"]) == "`cat`, `dog`"
    assert code_names(["a`b"]) == "`` a`b ``"
    assert "\n" not in code_names([HOSTILE])
    assert code_names([str(number) for number in range(60)]).endswith(" and 10 more")
