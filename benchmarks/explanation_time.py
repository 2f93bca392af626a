"""Time how long one long document takes to explain, and the size of its page.

    python benchmarks/explanation_time.py RUN DATA [--tokens 100000] [--repeat 5] [--json FILE]

RUN is a trained run of documents with classes that reads texts of any length (data.max_length=0). Texts of DATA, one
after the other, make a document of about as many tokens. Columns: a forward pass, removal scores alone, all of
`explain`, and its page, in seconds of processor time, which other work on the machine changes less; medians of
interleaved repetitions, after one that is not counted.
"""

import argparse
import json
import resource
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tabulate import tabulate

from longspan.explanations.methods import removal
from longspan.machine.environment import environment
from longspan.verbs.explain import explain_given
from longspan.verbs.predict import rows_of_source
from longspan.verbs.runs import load_run


def document(run: Any, data: Path, tokens: int) -> str:
    """Return a document of texts, of at least so many tokens if there are as many."""
    texts, count = list[str](), 0
    for row in rows_of_source(run, data, run.recipe.data, None):
        if count >= tokens:
            break
        texts.append(row.values["text"])
        (encoded,) = run.processor.encode({"text": texts[-1:]}, run.recipe.data)
        count += len(encoded.streams["input_ids"])
    return "\n".join(texts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--tokens", type=int, default=100_000)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    run = load_run(given.run)
    text = document(run, given.data, given.tokens)
    (row,) = run.task.inputs_in_memory(run, [text], run.recipe.data)
    question = run.task.case(run, row, "", None).question
    explanation = explain_given(run, text)
    work: dict[str, Callable[[], Any]] = {
        "forward pass": lambda: question.values(question.real.unsqueeze(0)),
        "removal": lambda: removal(question),
        "explain": lambda: explain_given(run, text),
        "page": explanation.page,
    }
    times: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(given.repeat + 1):
        for name, step in work.items():
            began = time.process_time()
            step()
            times[name].append(time.process_time() - began)
    medians = {name: statistics.median(found[1:]) for name, found in times.items()}
    found = {
        "tokens": len(explanation.scores),
        **{f"{name}, s": seconds for name, seconds in medians.items()},
        "removal, forward passes": medians["removal"] / medians["forward pass"],
        "explain, forward passes": medians["explain"] / medians["forward pass"],
        "page, forward passes": medians["page"] / medians["forward pass"],
        "page, MB": len(explanation.page().encode()) / 1e6,
        "peak memory, GiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20),
    }
    print(tabulate([[name, value] for name, value in found.items()], floatfmt=".2f"))
    if given.json:
        given.json.write_text(json.dumps({**found, "environment": environment()}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
