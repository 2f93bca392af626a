"""Print docs/mechanisms.md: what every mixer says of itself. `make docs` writes the page."""

from tabulate import tabulate

from longspan import mixers

HEAD = """# Mechanisms

Made by `make docs` from the docstrings. t: positions, dim: width, b: batch. `longspan show NAME` prints the same in a
terminal; the contract that all of them keep is in [tests/test_contract.py](../tests/test_contract.py).
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
        headers=["mixer", "causal", "streaming", "cross", "packing", "what it is"],
        tablefmt="github",
    )
    sections = [
        f"## {d.name}\n\n```\n{d.docstring}\n```\n\nOptions: "
        + ", ".join(f"`{name}={value!r}`" for name, value in d.options.items())
        + ".\n"
        for d in described
    ]
    return "\n".join([HEAD, table + "\n", *sections])


if __name__ == "__main__":
    print(page(), end="")
