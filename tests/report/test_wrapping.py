"""Tables and pages fit lines of 100 characters, and say all that they said."""

import json

import pytest

from longspan import cli, mixers, recipes, report
from longspan.report import wrapping


def longest(text: str) -> int:
    return max(map(len, text.splitlines()))


@pytest.mark.slow
def test_lists_and_pages_of_all_recipes_and_mixers_fit(capsys: pytest.CaptureFixture[str]) -> None:
    names = [*recipes.names(), *mixers.names(), *mixers.aliases(), "data.path", "model.mixers"]
    for arguments in (["list"], ["recipes"], *(["show", name] for name in names)):
        assert cli.main(arguments) == 0
        text = capsys.readouterr().out
        assert longest(text) <= 100, (arguments, max(text.splitlines(), key=len))


def test_json_holds_texts_whole(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [entry["cost"] for entry in listed] == [mixers.describe(name).cost for name in mixers.names()]
    assert cli.main(["show", "relative", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["docstring"] == mixers.describe("relative").docstring


def test_tables_that_fit_stay_as_they_are() -> None:
    text = report.table(["class", "n"], [["a", "1"], ["b", "12"]])
    assert text.splitlines() == ["class      n", "-------  ---", "a          1", "b         12"]


def test_headers_are_wrapped_first() -> None:
    text = report.table(["split", *["documents cut"] * 7], [["test", *["1,234"] * 7]])
    assert longest(text) <= 100
    first, second, _, row = (line.split() for line in text.splitlines())
    assert first == ["documents"] * 7
    assert second == ["split", *["cut"] * 7]
    assert row == ["test", *["1,234"] * 7]


def test_long_cells_are_wrapped_next() -> None:
    words = " ".join(f"word{number}" for number in range(20))
    text = report.table(["question", "answer", "probability"], [[words, words, "0.912"], ["who", "nobody", "0.400"]])
    assert longest(text) <= 100
    assert "\n\n" not in text
    assert all(text.count(f"word{number} ") + text.count(f"word{number}\n") >= 2 for number in range(20))
    # Texts begin at the left, numbers end at the right.
    last = text.splitlines()[-1]
    assert last.startswith("who ")
    assert " nobody  " in last
    assert last.endswith("0.400")


def test_a_name_without_spaces_is_cut() -> None:
    text = report.table(["class", "n"], [["x" * 250, "1"]])
    assert longest(text) <= 100
    assert text.count("x") == 250


@pytest.mark.parametrize("number", [12, 30])
def test_many_columns_become_several_tables_with_the_same_first_column(number: int) -> None:
    headers = ["mixer", *(f"score{place}" for place in range(number))]
    rows = [[name, *(f"{place}.123 ± 0.010" for place in range(number))] for name in ("additive", "softmax")]
    text = report.table(headers, rows)
    assert longest(text) <= 100
    tables = [table.splitlines() for table in text.split("\n\n")]
    assert len(tables) > 1
    found = [name for table in tables for name in table[0].split()[1:]]
    assert found == headers[1:]
    for header, _, first, second in tables:
        assert header.startswith("mixer")
        assert first.startswith("additive")
        assert second.startswith("softmax")
    assert "\n\n" not in report.table(headers, rows, "github")


def test_prose_is_filled_anew_and_entries_stay_apart() -> None:
    prose = " ".join(["position"] * 12)
    page = f"Cost: {prose} x\n    {prose} y\n    short: {prose}\nSource: here"
    lines = wrapping.wrapped(page).splitlines()
    assert max(map(len, lines)) <= 100
    assert " ".join(" ".join(lines).split()) == " ".join(page.split())
    assert lines[-1] == "Source: here"
    assert lines[1].startswith("    position")


def test_commands_go_on_after_a_backslash_and_columns_in_their_column() -> None:
    command = f"  longspan train mine {' '.join(f'data.key{number}=value' for number in range(6))}"
    lines = wrapping.wrapped(command).splitlines()
    assert max(map(len, lines)) <= 100
    assert lines[0].endswith(" \\")
    assert "".join(lines).replace("\\", "").split() == command.split()
    explained = f"  longspan train mine data.path=FILE    {'what it is ' * 8}".rstrip()
    first, second = wrapping.wrapped(explained).splitlines()
    assert len(second) - len(second.lstrip()) == first.index("what")
    # Lines below it in that column go on with it.
    more = wrapping.wrapped(f"{explained}\n{' ' * first.index('what')}and more\nAfter it.").splitlines()
    assert more == [first, f"{second} and more", "After it."]


def test_equations_break_between_one_another() -> None:
    text = "    gru:  " + "  ".join(f"r_{number} = σ(W x_t + U h_{{t-1}} + b_{number})," for number in range(4))
    lines = wrapping.wrapped(text).splitlines()
    assert max(map(len, lines)) <= 100
    assert all(line.endswith(",") for line in lines)
    assert all(line.startswith("        r_") for line in lines[1:])


@pytest.mark.parametrize("width", [20, 40, 80])
def test_narrow_terminals(width: int) -> None:
    page = wrapping.wrapped("Layers of attention, which see every position of a text. " * 4, width)
    assert longest(page) <= width
    assert wrapping.wrapped("", width) == ""
