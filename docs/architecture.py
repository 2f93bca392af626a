"""Draw the packages of longspan and what each imports, from the code: `python docs/architecture.py` writes the figure.

A package stands above all that it imports. Of the imports, those are drawn that do not follow from others.
"""

import ast
from html import escape
from pathlib import Path

HERE = Path(__file__).parent
SOURCE = HERE.parent / "src" / "longspan"
FIGURE = HERE / "images" / "architecture.svg"
#: Width of a box, height of a floor, and of a box on it.
WIDTH, FLOOR, BOX = 300, 86, 56
BOXES = 'fill="#eef2f8" stroke="#4a5a78"'


def imports() -> dict[str, set[str]]:
    """Return which packages each package imports, wherever in its files."""
    found: dict[str, set[str]] = {}
    names = {path.name.removesuffix(".py") for path in SOURCE.iterdir()}
    for path in sorted(SOURCE.rglob("*.py")):
        part = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        if part.startswith("__"):
            continue
        used = found.setdefault(part, set())
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "longspan":
                inner = node.module.split(".")[1:2]
                used |= {*inner} if inner else {alias.name for alias in node.names if alias.name in names}
    return {part: used - {part} for part, used in found.items()}


def floors(graph: dict[str, set[str]]) -> dict[str, int]:
    """Return how many packages stand on each other below each one."""
    found: dict[str, int] = {}

    def floor(part: str) -> int:
        if part not in found:
            found[part] = 1 + max(map(floor, graph[part]), default=-1)
        return found[part]

    for part in graph:
        floor(part)
    return found


def needed(graph: dict[str, set[str]]) -> dict[str, set[str]]:
    """Return the imports that do not follow from others."""

    def reached(part: str) -> set[str]:
        return graph[part].union(*map(reached, graph[part]))

    return {part: used - set().union(*map(reached, used)) for part, used in graph.items()}


def summary(part: str) -> str:
    """Return what the first line of a package says of it, up to a colon or a comma that ends a thought."""
    package = SOURCE / part / "__init__.py"
    file = package if package.is_file() else SOURCE / f"{part}.py"
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return text.partition("\n")[0].split(":")[0].split(". ")[0].removesuffix(".")


def drawn() -> str:
    """Return the figure as SVG."""
    graph = imports()
    height = floors(graph)
    rows = [sorted(part for part in graph if height[part] == floor) for floor in range(max(height.values()) + 1)]
    wide = max(map(len, rows)) * (WIDTH + 40) + 40
    places = {
        part: (wide / 2 + (number - (len(row) - 1) / 2) * (WIDTH + 40), (len(rows) - 1 - floor) * FLOOR + 20)
        for floor, row in enumerate(rows)
        for number, part in enumerate(row)
    }
    lines = []
    for part, used in needed(graph).items():
        for other in sorted(used):
            (x, y), (to_x, to_y) = places[part], places[other]
            middle = (y + BOX + to_y) / 2
            curve = f"M{x:g},{y + BOX} C{x:g},{middle:g} {to_x:g},{middle:g} {to_x:g},{to_y}"
            lines.append(f'<path d="{curve}" fill="none" stroke="#8a93a6" marker-end="url(#end)"/>')
    for part, (x, y) in places.items():
        words, second, first = summary(part).split(), "", ""
        while words and len(first) + len(words[0]) < 46:
            first += f" {words.pop(0)}"
        second = " ".join(words)
        second = second if len(second) < 48 else f"{second[:45].rsplit(' ', 1)[0]} ..."
        lines += [
            f'<rect x="{x - WIDTH / 2:g}" y="{y}" width="{WIDTH}" height="{BOX}" rx="6" {BOXES}/>',
            f'<text x="{x:g}" y="{y + 18}" font-weight="bold" font-size="14">{part}</text>',
            f'<text x="{x:g}" y="{y + 34}" font-size="11">{escape(first.strip())}</text>',
            f'<text x="{x:g}" y="{y + 48}" font-size="11">{escape(second)}</text>',
        ]
    marker = '<marker id="end" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto">'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide:g} {len(rows) * FLOOR + 10}"'
            ' font-family="sans-serif" text-anchor="middle">',
            '<rect width="100%" height="100%" fill="white"/>',
            f'<defs>{marker}<path d="M0,0 L8,4 L0,8 z" fill="#8a93a6"/></marker></defs>',
            *lines,
            "</svg>\n",
        ]
    )


if __name__ == "__main__":
    FIGURE.write_text(drawn(), encoding="utf-8")
