"""The page of an explanation in Chromium: size, first paint, jumps and memory by length.

    python benchmarks/explanation_page.py [--tokens 25000,50000,100000] [--rows 32] [--json FILE]

Explanations of generated texts, with scores of all parts together and as many rows of weights, are opened in Chromium
without a window. A jump is the time from the slider's event to the next frame after the page was drawn. It has the
median of 20. The heap is what the page's JavaScript holds after a collection.
"""

import argparse
import json
import random
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from playwright.sync_api import Browser, sync_playwright
from tabulate import tabulate

from longspan.machine.environment import environment
from longspan.report.explanation import Explanation

JUMPS = 20
# The page draws in the next frame after an event. What follows that frame comes after its layout and paint.
JUMP = """(place) => new Promise((done) => {
  const slider = document.getElementById("place"), start = performance.now();
  slider.value = place;
  slider.dispatchEvent(new Event("input"));
  requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now() - start)));
})"""
PAINT = "performance.getEntriesByName('first-contentful-paint').map((entry) => entry.startTime)[0]"


def explanation(tokens: int, rows: int) -> Explanation:
    """Return an explanation of a text of words, a token each, most of them with small scores."""
    choose, draw = random.Random(0), np.random.default_rng(0)
    words = ["".join(choose.choices("etaoinshrdlu", k=choose.randint(1, 9))) for _ in range(tokens)]
    ends = np.cumsum([len(word) + 1 for word in words]) - 1
    spans = np.stack([ends - [len(word) for word in words], ends], 1)
    parts = {
        f"layer {row // 4 + 1}, head {row % 4 + 1}, alpha": draw.dirichlet(np.full(tokens, 0.1)).tolist()
        for row in range(rows)
    }
    return Explanation(
        where="generated", of="yes", unit="log-odds", value=1.0, method="removal", prediction={"label": "yes"},
        spans=spans.tolist(), scores=draw.laplace(size=tokens).tolist(), text=" ".join(words), parts=parts,
    )  # fmt: skip


def measured(browser: Browser, path: Path, tokens: int) -> dict[str, float]:
    """Return what the page at `path` takes."""
    page = browser.new_page()
    page.goto(path.as_uri())
    # `wait_for_function` would evaluate text within the page, which its policy forbids.
    while page.evaluate(PAINT) is None:
        page.wait_for_timeout(20)
    choose = random.Random(1)
    jumps = [page.evaluate(JUMP, choose.randrange(tokens)) for _ in range(JUMPS)]
    session = page.context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    heap = session.send("Runtime.getHeapUsage")
    found = {
        "megabytes": path.stat().st_size / 1e6,
        "first_paint_ms": page.evaluate(PAINT),
        "jump_ms": statistics.median(jumps),
        # Typed arrays lie outside of the heap of objects.
        "heap_megabytes": (heap["usedSize"] + heap["backingStorageSize"]) / 1e6,
    }
    page.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", default="25000,50000,100000", help="numbers of tokens, separated by commas")
    parser.add_argument("--rows", type=int, default=32, help="rows of weights")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    options = parser.parse_args()
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as started:
        arguments = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        browser = started.chromium.launch(executable_path=shutil.which("chromium"), args=arguments)
        for tokens in map(int, options.tokens.split(",")):
            path = Path(folder) / f"{tokens}.html"
            explanation(tokens, options.rows).save(path)
            found[str(tokens)] = measured(browser, path, tokens)
        version = browser.version
        browser.close()
    rows = [[int(tokens), *values.values()] for tokens, values in found.items()]
    headers = ["tokens", "page, MB", "first paint, ms", "jump, ms", "heap, MB"]
    print(f"Chromium {version}, {options.rows} rows of weights")
    print(tabulate(rows, headers=headers, floatfmt=".1f", intfmt=","))
    if options.json:
        options.json.write_text(json.dumps({"result": found, "environment": environment()}, indent=1))


if __name__ == "__main__":
    main()
