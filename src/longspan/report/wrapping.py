"""Lines that fit a terminal: tables whose columns are narrowed or cut, and pages whose long lines are wrapped."""

import re
import textwrap
from collections.abc import Iterable, Sequence

WIDTH = 100
"""Characters in a line of a page or table."""
#: Cells with more characters are texts: a wide table wraps them, to no fewer than `_LEAST` characters.
_LONG, _LEAST = 24, 16
#: Spaces between columns, and how much wider than its header tabulate makes a column.
_GAP, _PADDING = 2, 2
#: Prose is wrapped again where its author broke a line after this many characters because the next word did not fit.
_FULL = 104
#: Stands for a space that no line ends at.
_KEPT = "\0"
#: Beginning of an entry: "name:", "two words:", "name (note):".
_LABEL = re.compile(r"[`\w./-]+(?: [\w-]+){0,2}(?: \([^)]*\))?:(?= |$)")


def fitted(
    headers: Sequence[str], rows: Sequence[Sequence[str]], width: int = WIDTH
) -> list[tuple[list[str], list[list[str]], list[str]]]:
    """Return the tables that show one in lines of at most `width`: headers, rows and alignments of each.

    Headers are wrapped first, then long texts in cells. What is still too wide becomes several tables, one below the
    other, which all begin with the first column.
    """
    columns = [[row[place] for row in rows] for place in range(len(headers))]
    shown, aligned = list(headers), ["left", *["right"] * (len(headers) - 1)]
    if _total_width(map(_width, shown, columns)) > width:
        shown = [_narrow(header, _longest(column) - _PADDING) for header, column in zip(shown, columns, strict=True)]
    if _total_width(map(_width, shown, columns)) > width:
        for place, most in _text_widths(shown, columns, width).items():
            columns[place] = [_filled(cell, most) for cell in columns[place]]
            shown[place] = _filled(shown[place].replace("\n", " "), most - _PADDING)
            aligned[place] = "left"
    widths = list(map(_width, shown, columns))
    groups: list[list[int]] = [[0]]
    for place in range(1, len(headers)):
        if len(groups[-1]) > 1 and _total_width(widths[each] for each in (*groups[-1], place)) > width:
            groups.append([0])
        groups[-1].append(place)
    return [
        (
            _level([shown[place] for place in group]),
            [[columns[place][row] for place in group] for row in range(len(rows))],
            [aligned[place] for place in group],
        )
        for group in groups
    ]


def _total_width(widths: Iterable[int]) -> int:
    found = list(widths)
    return sum(found) + _GAP * (len(found) - 1)


def _width(header: str, column: Sequence[str]) -> int:
    return max(
        _longest(header.split("\n")) + _PADDING, _longest([line for cell in column for line in cell.split("\n")])
    )


def _longest(texts: Sequence[str]) -> int:
    return max(map(len, texts), default=0)


def _narrow(header: str, room: int) -> str:
    """Return a header in lines as long as its column is wide, or as its longest word."""
    return _filled(header, max(room, _longest(header.split())))


def _filled(text: str, width: int) -> str:
    return textwrap.fill(text, max(width, 1), break_on_hyphens=False)


def _text_widths(headers: Sequence[str], columns: Sequence[Sequence[str]], width: int) -> dict[int, int]:
    """Widths of columns of long texts: equal parts of the room that the others leave, or their needs."""
    widths = list(map(_width, headers, columns))
    texts = sorted((place for place, cells in enumerate(columns) if _longest(cells) > _LONG), key=widths.__getitem__)
    room = width - _total_width(widths) + sum(widths[place] for place in texts)
    found = {}
    for number, place in enumerate(texts):
        found[place] = max(_LEAST, min(widths[place], room // (len(texts) - number)))
        room -= found[place]
    return found


def _level(headers: Sequence[str]) -> list[str]:
    """Return headers of several lines that end in the same line."""
    most = max(header.count("\n") for header in headers)
    return ["\n" * (most - header.count("\n")) + header for header in headers]


def wrapped(text: str, width: int = WIDTH) -> str:
    """Return a page in lines of at most `width`, as far as its words allow.

    Paragraphs with a line that is too long are filled again, with their indentation. Commands go on after a backslash,
    and what stands in columns goes on in its column.
    """
    return "\n".join(_fill(lines, width) for lines in _paragraphs(text.split("\n"), width))


def _paragraphs(lines: Sequence[str], width: int) -> list[list[str]]:
    """Return the lines of a page in groups: a long line of prose with the lines that go on with it, others alone."""
    found: list[list[str]] = []
    for line in lines:
        if found and max(map(len, [*found[-1], line])) > width and _goes_on(found[-1], line):
            found[-1].append(line)
        else:
            found.append([line])
    return found


def _goes_on(paragraph: Sequence[str], line: str) -> bool:
    """Return whether a line goes on with a paragraph of prose, whose last line had no room for its first word."""
    last, word = paragraph[-1], next(iter(line.split()), "")
    if word and _indent(line) == _column(paragraph[0]):
        return True
    if not word or len(last) + len(word) < _FULL or _has_form(last) or _has_form(line):
        return False
    deeper = _indent(line) - _indent(last)
    if len(paragraph) > 1 and _indent(last) > _indent(paragraph[0]):
        return deeper == 0
    if _LABEL.match(line.strip()) or last.endswith(":"):
        return False
    if len(paragraph) > 1:
        return deeper == 0
    equation = _indent(last) > 0 and " = " in last
    return deeper == 4 or (deeper == 0 and not equation)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _column(line: str) -> int | None:
    """Return where the last column of a line begins; None for a line without columns."""
    found = [gap.end() for gap in re.finditer(r"(?<=\S) {3,}(?=\S)", line)]
    return found[-1] if found else None


def _has_form(line: str) -> bool:
    """Return whether a line is a command, or has columns."""
    return line.lstrip().startswith("longspan ") or _column(line) is not None


def _fill(lines: Sequence[str], width: int) -> str:
    if max(map(len, lines)) <= width:
        return "\n".join(lines)
    indent, text = " " * _indent(lines[0]), " ".join(line.strip() for line in lines)
    column = _column(lines[0])
    if len(lines) > 1:
        hanging = " " * _indent(lines[1])
    elif column is not None and column < width - _LEAST:
        hanging = " " * column
    else:
        hanging = f"{indent}    " if indent or _LABEL.match(text) else ""
    command = text.startswith("longspan ") and column is None
    # Two spaces are between equations.
    whole = _wrap("  ".join(part.replace(" ", _KEPT) for part in text.split("  ")), width, indent, hanging)
    if column is not None or len(whole) == 1 or max(map(len, whole)) > width:
        whole = _wrap(text, width - 2 * command, indent, hanging)
    return (" \\\n" if command else "\n").join(whole).replace(_KEPT, " ")


def _wrap(text: str, width: int, indent: str, hanging: str) -> list[str]:
    return textwrap.wrap(
        text,
        width,
        initial_indent=indent,
        subsequent_indent=hanging,
        break_long_words=False,
        break_on_hyphens=False,
    )
