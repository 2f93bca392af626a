"""Reference pages made from the code: the command line, tasks and recipes with every key, and the mechanisms."""

import argparse
import os
import re
import runpy
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from docstrings import escaped
from sphinx.application import Sphinx

DOCS = Path(__file__).resolve().parents[1]
REFERENCE = DOCS / "reference"
GENERATED = REFERENCE / "generated"
RECIPES = DOCS.parent / "src" / "longspan" / "recipes"
#: Lengths for which the cost of a layer is given, and its width.
LENGTHS, WIDTH = (512, 4096, 32768), 256


def _write(path: Path, lines: Iterable[str]) -> None:
    """Write a page, unless it is as it was: Sphinx reads again what is newer than its copy."""
    text = "\n".join(lines) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def _title(text: str, line: str = "=") -> list[str]:
    return [text, line * max(len(text), 3), ""]


def _table(rows: Iterable[Iterable[str]], *, header: bool = True, widths: str = "auto") -> list[str]:
    found = [".. list-table::", f"   :widths: {widths}", *(["   :header-rows: 1"] if header else []), ""]
    for row in rows:
        first, *others = row
        found += [f"   * - {first}", *(f"     - {cell}" for cell in others)]
    return [*found, ""]


def _code(text: str, language: str = "none") -> list[str]:
    return [f".. code-block:: {language}", "", *(f"   {line}".rstrip() for line in text.splitlines()), ""]


def _value(value: Any) -> str:
    """Return a value as TOML would have it, in code, or what it is when nothing is set."""
    if value is None:
        return "unset"
    if value in ("", [], {}, ()):
        return {"": "empty"}.get(value, "none") if isinstance(value, str) else "none"
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return f"``{text}``"


# --- command line


def _options(parser: argparse.ArgumentParser) -> list[str]:
    found: list[str] = []
    for group in parser._action_groups:
        actions = [one for one in group._group_actions if one.help != argparse.SUPPRESS]
        if not actions:
            continue
        own = group.title not in ("positional arguments", "options")
        found += [f".. rubric:: {group.title}", ""] if own and group.title else []
        for action in actions:
            metavar = action.metavar or (action.dest.upper() if action.nargs != 0 else "")
            if isinstance(metavar, tuple):
                metavar = " ".join(metavar)
            # A flag on or off has its negation as a further name.
            flags = ", ".join(f"{flag} {metavar}".strip() for flag in action.option_strings) or str(metavar)
            text = (action.help or "").replace("%(default)s", str(action.default)).replace("%%", "%")
            if action.choices and "{" not in flags:
                text += f" One of: {', '.join(map(str, action.choices))}."
            said = text[:1].upper() + text[1:]
            found += [f".. option:: {flags}", "", f"   {escaped(said)}{'' if said.endswith('.') else '.'}", ""]
    return found


def _command_line() -> None:
    from longspan.cli import build_parser

    _parser, verbs = build_parser()
    lines = [
        *_title("Command line"),
        "The command ``longspan`` has one verb for each public function. ``longspan VERB --help`` prints what is below.",  # noqa: E501
        "Results go to standard output, all else to standard error.",
        "",
        *_table(
            [["verb", "what it does"]]
            + [[f":ref:`{name} <longspan-{name}>`", escaped(verb.description or "")] for name, verb in verbs.items()]
        ),
        *_table(
            [
                ["exit code", "meaning"],
                ["0", "success"],
                ["2", "a mistake that you can fix; one sentence on standard error says how"],
                ["130", "interrupted with ctrl-C; training has saved a checkpoint"],
            ]
        ),
    ]
    for name, verb in verbs.items():
        usage = re.sub(r"\s+", " ", verb.format_usage().removeprefix("usage: ")).strip()
        lines += [
            f".. _longspan-{name}:",
            "",
            *_title(f"longspan {name}", "-"),
            escaped(verb.description or ""),
            "",
            *_code(usage),
            f".. program:: longspan {name}",
            "",
            *_options(verb),
        ]
    _write(GENERATED / "command-line.rst", lines)


# --- tasks and recipes


def _comment(text: str) -> tuple[str, str]:
    """Return the comment at the start of a recipe's file, and the rest."""
    lines = text.splitlines()
    end = next((i for i, line in enumerate(lines) if not line.startswith("#")), len(lines))
    return "\n".join(line.removeprefix("#").removeprefix(" ") for line in lines[:end]), "\n".join(lines[end:]).strip()


def _prose(text: str) -> list[str]:
    """Return a comment: indented lines are commands, the others paragraphs."""
    found: list[str] = []
    commands: list[str] = []
    for line in [*text.splitlines(), ""]:
        if line.startswith("  "):
            commands.append(line.strip() if line.startswith("  longspan") else line[2:])
            continue
        if commands:
            found += ["", *_code("\n".join(commands), "none")]
            commands = []
        found.append(escaped(line))
    return [*found, ""]


def _keys(task: Any) -> list[str]:
    from longspan.recipes import keys

    found: list[str] = []
    entries = keys.explained(task)
    for table in keys.TABLES:
        found += _title(f"[{table}]", "-")
        own = [key for key in entries if key.table == table]
        for part in dict.fromkeys(key.part for key in own):
            if part:
                found += [*_title(f"{part[0].upper()}{part[1:]}", "~")]
            for key in own:
                if key.part == part:
                    meaning = escaped(" ".join(key.meaning.split())) or "As in transformers."
                    kind = escaped(key.type)
                    found += [
                        f"``{table}.{key.name}``",
                        f"   *{kind}*, default {_value(key.default)}",
                        "",
                        f"   {meaning}",
                        "",
                    ]
    others = ", ".join(f"``{name}``" for name in keys.further_keys(task))
    return [
        *found,
        "Further keys of ``[training]`` are fields of transformers' ``TrainingArguments``: " + others + ".",
        "",
    ]


def _tasks() -> None:
    from longspan import recipes, tasks
    from longspan.recipes import pages

    entries = pages.entries()
    for name in tasks.names():
        task = tasks.load(name)
        own = [entry for entry in entries if entry["task"] == name]
        lines = [
            f".. _task-{name.replace('_', '-')}:",
            "",
            *_title(name.replace("_", " ").capitalize()),
            f"The task ``{name}``: {len(own)} recipe{'s' if len(own) > 1 else ''} and all keys. "
            "``longspan show RECIPE`` prints the same in a terminal.",
            "",
        ]
        lines += _title("Recipes", "-")
        for entry in own:
            comment, toml = _comment((RECIPES / f"{entry['name']}.toml").read_text(encoding="utf-8"))
            lines += [
                f".. _recipe-{entry['name']}:",
                "",
                *_title(entry["name"], "~"),
                escaped(entry["description"]),
                "",
                *_prose(comment),
                *_code(toml, "toml"),
            ]
        lines += _keys(task)
        _write(GENERATED / "tasks" / f"{name}.rst", lines)
    rows = [
        [f":ref:`{entry['name']} <recipe-{entry['name']}>`", escaped(entry["description"]), f"``{entry['task']}``"]
        for entry in entries
    ]
    assert {entry["name"] for entry in entries} == {*recipes.names()}
    lines = [
        *_title("Recipes and keys"),
        "A recipe is a complete run as a TOML file that holds only what differs from the defaults. ``longspan recipes``",  # noqa: E501
        "lists all of them. ``longspan train RECIPE key=value`` overrides any key. The page of a task explains every key.",  # noqa: E501
        "",
        *_table([["recipe", "what it is for", "task"], *rows]),
        ".. toctree::",
        "   :caption: Tasks",
        "   :maxdepth: 1",
        "",
        *(f"   tasks/{name}" for name in tasks.names()),
    ]
    _write(GENERATED / "recipes.rst", lines)


# --- mechanisms


def _linked(text: str) -> str:
    """Return text whose addresses are links."""
    return re.sub(r"https?://[^\s;,)]+", lambda match: match[0].replace("\\_", "_"), escaped(text))


def _paragraph(docstring: str, label: str) -> str:
    """Text of a docstring after a label, with its indented lines."""
    found = re.search(rf"^{label}: (.*(?:\n    .*)*)", docstring, re.MULTILINE)
    return " ".join(found[1].split()) if found else ""


def _count(number: int) -> str:
    for size, unit in ((10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k")):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return str(number)


def _costs(name: str) -> list[str]:
    from longspan import mixers

    more = {"max_length": max(LENGTHS)} if "max_length" in mixers.options(name) else {}
    forms = [("both directions", mixers.build(name, WIDTH, **more))]
    if mixers.describe(name).causal:
        forms.append(("causal", mixers.build(name, WIDTH, causal=True)))
    rows = [["positions", *(f"{form}: operations" for form, _ in forms)]]
    streams = mixers.describe(name).streaming
    rows[0] += ["elements in the state"] if streams else []
    for length in LENGTHS:
        row = [f"{length:,}", *(_count(mixer.operations(length)) for _, mixer in forms)]
        rows.append([*row, *([_count(forms[-1][1].state_size(length))] if streams else [])])
    return [
        f"One layer of width {WIDTH} with default options, counted: operations of the matrix products of a forward pass.",  # noqa: E501
        "",
        *_table(rows),
    ]


def _mechanism(name: str, formulas: list[list[str]]) -> None:
    from longspan import mixers

    found = mixers.describe(name)
    kind = mixers.load(name)
    able = {word: getattr(found, word) for word in ("causal", "streaming", "context", "packing", "edges")}
    lines = [
        f".. _mechanism-{name}:",
        "",
        *_title(name),
        escaped(found.summary),
        "",
        *_code(f'mixers.build("{name}", dim=256)', "python"),
        *_table(
            [
                ["can be", ", ".join(word for word, yes in able.items() if yes) or "neither causal nor streamed"],
                ["other names", ", ".join(f"``{alias}``" for alias in found.aliases) or "none"],
                ["cost", escaped(_paragraph(found.docstring, "Cost"))],
                ["source", _linked(_paragraph(found.docstring, "Source"))],
            ],
            header=False,
            widths="20 80",
        ),
        *_title("Equations", "-"),
    ]
    for words, formula in formulas:
        lines += [f"{escaped(words[0].upper() + words[1:])}:", "", ".. math::", "", f"   {formula}", ""]
    lines += [
        *_title("Which inputs an output depends on", "-"),
        "Norm of the derivative of each output with respect to each input, with random weights, relative to the",
        "largest one.",
        "",
    ]
    for theme in ("light", "dark"):
        lines += [
            f".. image:: /reference/generated/figures/{name}-{theme}.png",
            f"   :class: only-{theme}",
            f"   :alt: {name}: matrices with a row for each output and a column for each input, darker where the output "  # noqa: E501
            "depends more on the input",
            "",
        ]
    lines += [
        *_title("Cost", "-"),
        *_costs(name),
        *_title("Class", "-"),
        f".. autoclass:: {kind.__module__}.{kind.__name__}",
        "   :show-inheritance:",
        "",
    ]
    _write(GENERATED / "mechanisms" / f"{name}.rst", lines)


def _crossovers() -> list[str]:
    """Return a table of the shortest lengths at which mixers take fewer operations than softmax attention."""
    from longspan import mixers

    longest = 1 << 16

    def shortest(name: str, **options: Any) -> str:
        if options and not mixers.describe(name).causal:
            return "no such form"
        more = {"max_length": longest} if "max_length" in mixers.options(name) else {}
        one, other = (
            mixers.build(each, WIDTH, **options, **(more if each == name else {})) for each in (name, "softmax")
        )
        found = next((t for t in range(1, longest) if one.operations(t) < other.operations(t)), None)
        if found is None:
            return "never"
        return "any" if found <= 16 else f"{found:,}"

    names = [name for name in mixers.names() if name != "softmax"]
    lines = [f"| `{name}` | {shortest(name)} | {shortest(name, causal=True)} |" for name in names]
    return ["| mixer | both directions, tokens | causal, tokens |", "|---|---|---|", *lines]


def _decoders() -> list[str]:
    """Return a table of what mixers can be in an encoder-decoder model, and how their cost grows."""
    from longspan import mixers

    def state(name: str) -> str:
        able = mixers.describe(name)
        if not (able.causal and able.streaming):
            return "no"
        one = mixers.build(name, WIDTH, causal=True)
        short, long, longest = (one.state_size(t) for t in (100, 10_000, 100_000))
        return "constant" if short == longest else "a window" if long == longest else "grows"

    def cross(name: str) -> str:
        if not mixers.describe(name).context:
            return "no"
        return "constant" if mixers.build(name, WIDTH, causal=True).bounded_context else "grows"

    def grows(name: str) -> str:
        more = {"max_length": 1 << 22} if "max_length" in mixers.options(name) else {}
        return "linear" if mixers.build(name, WIDTH, **more).linear else "quadratic"

    lines = [f"| `{name}` | {grows(name)} | {state(name)} | {cross(name)} |" for name in mixers.names()]
    return [
        "| mixer | encoder: cost of a source | decoder: state | cross attention: what is kept of the source |",
        "|---|---|---|---|",
        *lines,
    ]


def _cross_attention() -> list[str]:
    """Return a table of what mixers with cross attention keep of a source, and what a step takes."""
    import torch
    from torch.utils._pytree import tree_leaves

    from longspan import mixers

    def figures(name: str) -> str:
        one, cells = mixers.build(name, WIDTH, causal=True), []
        for length in (LENGTHS[0], LENGTHS[-1]):
            state = one.init_state(1, context=torch.zeros(1, length, WIDTH))
            kept = sum(leaf.numel() for leaf in tree_leaves(state) if leaf.is_floating_point())
            step = one.context_operations(1, length) - one.context_operations(0, length)
            cells += [f"{kept:,}", f"{step:,}"]
        return " | ".join([*cells, "yes" if mixers.describe(name).weights else "no"])

    names = [name for name in mixers.names() if mixers.describe(name).context]
    short, long = f"{LENGTHS[0]:,}", f"{LENGTHS[-1]:,}"
    return [
        f"| mixer | {short} tokens: numbers kept | operations per step | {long} tokens: numbers kept | "
        "operations per step | weights of source tokens |",
        "|---|---|---|---|---|---|",
        *(f"| `{name}` | {figures(name)} |" for name in names),
    ]


def _mechanisms() -> None:
    _write(GENERATED / "crossovers.md", _crossovers())
    _write(GENERATED / "decoders.md", _decoders())
    _write(GENERATED / "cross_attention.md", _cross_attention())
    from longspan import mixers

    runpy.run_path(str(DOCS / "dependence.py"))["draw_all"](GENERATED / "figures")
    equations = tomllib.loads((REFERENCE / "equations.toml").read_text(encoding="utf-8"))
    if lacking := {*mixers.names()} ^ {*equations}:
        raise ValueError(f"expected equations.toml to have each mechanism once, got a difference in {lacking}")
    for name in mixers.names():
        _mechanism(name, equations[name]["lines"])
    described = [mixers.describe(name) for name in mixers.names()]
    rows = [
        [
            f":ref:`{found.name} <mechanism-{found.name}>`",
            escaped(found.summary),
            *("yes" if able else "no" for able in (found.causal, found.streaming, found.context, found.packing)),
        ]
        for found in described
    ]
    lines = [
        *_title("Mechanisms"),
        "Each mechanism has a page with equations, cost, source, and a figure of the inputs that an output depends on.",
        ":doc:`All docstrings on one page </mechanisms>`. :doc:`/guides/choosing-a-mixer` has recommendations.",
        "",
        *_table([["mixer", "what it is", "causal", "streaming", "context", "packing"], *rows]),
        ".. toctree::",
        "   :hidden:",
        "",
        *(f"   mechanisms/{name}" for name in mixers.names()),
        "   All docstrings on one page </mechanisms>",
    ]
    _write(GENERATED / "mechanisms.rst", lines)


def _generate(app: Sphinx) -> None:
    os.environ.setdefault("COLUMNS", "100")
    _command_line()
    _tasks()
    _mechanisms()


def setup(app: Sphinx) -> dict[str, bool]:
    # Before autosummary looks for its tables.
    app.connect("builder-inited", _generate, priority=100)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
