"""Time of `run.predict` against its forward pass: `python benchmarks/prediction_overhead.py runs/quickstart`.

One text at a time in a warm process, on one thread; the two alternate. RUN is a run folder of a classifier.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

import longspan

TEXT = "the film was a long and rather slow story of two people who meet in a small town"


def seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--words", default="20,200,900")
    parser.add_argument("--repeats", type=int, default=200)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    run = longspan.load(arguments.run)
    words = TEXT.split()
    for count in map(int, arguments.words.split(",")):
        text = " ".join(words[number % len(words)] for number in range(count))
        given: dict[str, Any] = {}
        hook = run.model.register_forward_pre_hook(lambda _, __, named, to=given: to.update(named), with_kwargs=True)
        run.predict([text])
        hook.remove()

        @torch.no_grad()
        def forward(given: dict[str, Any] = given) -> None:
            run.model(**given)

        def predict(text: str = text) -> None:
            run.predict([text])

        times = [(seconds(predict), seconds(forward)) for _ in range(arguments.repeats)]
        whole, inside = (1000 * statistics.median(each) for each in zip(*times, strict=True))
        print(f"{count:5} words: predict {whole:.2f} ms, forward {inside:.2f} ms, ratio {whole / inside:.2f}")


if __name__ == "__main__":
    main()
