"""Print docs/mechanisms.md: what every mixer says of itself. `make docs` writes the page."""

from tabulate import tabulate

from longspan import mixers

HEAD = """# Mechanisms

Made by `make docs` from the docstrings. t: positions, dim: width, b: batch. `longspan show NAME` prints the same in a
terminal; `longspan.testing.check_mixer` holds each of them, and yours, to the contract that all of them keep.
"""


def page() -> str:
    described = [mixers.describe(name) for name in mixers.names()]
    table = tabulate(
        [
            [
                f"[{d.name}](#{d.name})",
                *("yes" if able else "" for able in (d.causal, d.streaming, d.context, d.packing)),
                d.summary,
            ]
            for d in described
        ],
        headers=["mixer", "causal", "streaming", "context", "packing", "what it is"],
        tablefmt="github",
    )
    others = ", ".join(f"`{alias}` ([{mixer}](#{mixer}))" for alias, (mixer, _) in mixers.aliases().items())
    sections = [
        f"## {d.name}\n\n```\n{d.docstring}\n```\n\nOptions: "
        + ", ".join(f"`{name}={value!r}`" for name, value in d.options.items())
        + ".\n"
        for d in described
    ]
    return "\n".join([HEAD, f"{table}\n\nOther names: {others}.\n", *sections])


if __name__ == "__main__":
    print(page(), end="")
