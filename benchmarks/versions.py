"""Speed of this checkout against another one, such as that of an earlier commit, interleaved.

    python benchmarks/versions.py OTHER_CHECKOUT [--repeats 9] [--only TEXT] [--json FILE]

    git worktree add ../before COMMIT && python benchmarks/versions.py ../before

Two processes, one with the code of each checkout, do the same work with the same weights. Only one of them works at a
time. The table has the medians of both and their ratio, which is above 1 where this checkout is slower.

Every mixer runs forward and backward at 2 x 4,096 positions of width 256: without padding, with padding, and causal.
Classifiers train on 64 x 256 tokens, as for film reviews. Language models with carried states train on 16 x 256. Other
work is reading documents for evaluation and generating tokens one by one. The commands are `train` for one epoch of
1,000 generated reviews, `evaluate` and `predict`.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]


def work() -> dict[str, Callable[[], Any]]:
    """Return everything that is timed, by name; with the checkout's own `longspan`."""
    import torch

    from longspan import LongspanConfig, LongspanForCausalLM, LongspanForSequenceClassification, mixers
    from longspan.cli import use_fastest_exact_products

    use_fastest_exact_products()
    torch.manual_seed(0)
    found: dict[str, Callable[[], Any]] = {}
    x = torch.randn(2, 4096, 256, requires_grad=True)
    mask = torch.ones(2, 4096, dtype=torch.bool)
    mask[1, 3000:] = False

    def mixing(name: str, mask: Any, **options: Any) -> Callable[[], None]:
        mixer = mixers.build(name, 256, **{k: v for k, v in options.items() if k in mixers.options(name)})

        def run() -> None:
            y = mixer(x, mask)
            torch.autograd.grad(y, [x, *mixer.parameters()], torch.ones_like(y), allow_unused=True)

        return run

    for name in mixers.names():
        found[name] = mixing(name, None, heads=8)
        found[f"{name}, padded"] = mixing(name, mask, heads=8)
        if "causal" in mixers.options(name):
            found[f"{name}, causal"] = mixing(name, None, heads=8, causal=True)

    def classifying(mixer: str) -> Callable[[], None]:
        shape = {"dim": 256, "depth": 2, "heads": 16, "mixers": [mixer], "vocab_size": 16000}
        model = LongspanForSequenceClassification(LongspanConfig(**shape, num_labels=2))
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        ids, labels = torch.randint(2, 16000, (64, 256)), torch.arange(64) % 2
        real = torch.arange(256) < torch.linspace(200, 256, 64).unsqueeze(1)

        def run() -> None:
            model(input_ids=ids, attention_mask=real.long(), labels=labels).loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        return run

    for mixer in ("additive", "softmax"):
        found[f"training a classifier, {mixer}"] = classifying(mixer)

    def language(mixer: str) -> dict[str, Callable[[], None]]:
        shape = {"dim": 192, "depth": 4, "heads": 8, "mixers": [mixer], "vocab_size": 68, "position": "none"}
        model = LongspanForCausalLM(LongspanConfig(**shape, causal=True, eos_token_id=2))
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        ids = torch.randint(3, 68, (16, 256))
        states = model.base_model.init_states(16)

        def train() -> None:
            nonlocal states
            output = model.train()(input_ids=ids, shift_labels=ids, past_key_values=states, use_cache=True)
            output.loss.backward()
            states = output.past_key_values.detach()
            optimizer.step()
            optimizer.zero_grad()

        @torch.no_grad()
        def read() -> None:
            carried = None
            for _ in range(4):
                carried = model.eval()(
                    input_ids=ids[:4], past_key_values=carried, use_cache=True, shift_labels=ids[:4], logits_to_keep=1
                ).past_key_values

        @torch.no_grad()
        def generate() -> None:
            carried, token = None, ids[:1, :1]
            for _ in range(32):
                output = model.eval()(input_ids=token, past_key_values=carried, use_cache=True, logits_to_keep=1)
                carried, token = output.past_key_values, output.logits[:, -1].argmax(-1, keepdim=True)

        return {"training a language model": train, "evaluating": read, "generating 32 tokens": generate}

    for mixer in ("relative", "additive", "linear"):
        found |= {f"{name}, {mixer}": run for name, run in language(mixer).items()}
    return found | verbs()


def verbs() -> dict[str, Callable[[], Any]]:
    """Return whole commands on generated reviews, as functions."""
    from longspan import evaluate, predict, train

    folder = Path(tempfile.mkdtemp())
    drawn = random.Random(0)
    words = [f"word{number}" for number in range(2000)]
    rows = [f"{' '.join(drawn.choices(words, k=drawn.randint(20, 400)))},{'ab'[n % 2]}" for n in range(1000)]
    (folder / "reviews.csv").write_text("\n".join(["text,label", *rows]) + "\n", encoding="utf-8")
    shape = ["model.dim=64", "model.heads=4", "model.depth=1", "model.wide=false"]
    given = [f"data.path={folder / 'reviews.csv'}", "data.tokens=words", *shape, "training.num_train_epochs=1"]
    given += ["training.max_minutes=0", "training.min_steps=0"]

    def training() -> None:
        train("classify", given, run=folder / "run", overwrite=True, progress=False)

    training()
    return {
        "train": training,
        "evaluate": lambda: evaluate(folder / "run", split="validation"),
        "predict": lambda: list(predict(folder / "run", [folder / "reviews.csv"])),
    }


def serve() -> None:
    """Do what is asked for, one name per line, and answer with the seconds it took; what it took first warms up."""
    known = work()
    print(json.dumps(list(known)), flush=True)
    for line in sys.stdin:
        start = time.perf_counter()
        known[line.strip()]()
        print(time.perf_counter() - start, flush=True)


class Side:
    """A process with the code of one checkout."""

    def __init__(self, checkout: Path) -> None:
        environment = {**os.environ, "PYTHONPATH": str(checkout / "src")}
        command = [sys.executable, str(Path(__file__).resolve()), "--serve"]
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=checkout
        )
        assert self.process.stdout is not None
        self.names: list[str] = json.loads(self.process.stdout.readline())

    def time(self, name: str) -> float:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(name, file=self.process.stdin, flush=True)
        return float(self.process.stdout.readline())


def main() -> None:
    if "--serve" in sys.argv:
        serve()
        return
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__.partition("\n")[0])
    parser.add_argument("other", type=Path, help="the other checkout")
    parser.add_argument("--repeats", type=int, default=9, help="timed turns of each")
    parser.add_argument("--only", metavar="TEXT", action="append", default=[], help="work whose names contain this")
    parser.add_argument("--json", type=Path, help="write the result here")
    arguments = parser.parse_args()
    from tabulate import tabulate

    from longspan.machine.environment import environment

    other, this = Side(arguments.other.resolve()), Side(HERE)
    rows = []
    for name in this.names:
        if name not in other.names or (arguments.only and not any(word in name for word in arguments.only)):
            continue
        times: dict[str, list[float]] = {"other": [], "this": []}
        for turn in range(arguments.repeats + 2):
            # Neither is always the one that finds the caches warm.
            for side in ("other", "this") if turn % 2 else ("this", "other"):
                seconds = (other if side == "other" else this).time(name)
                # The first two compile loops and lay out memory.
                if turn > 1:
                    times[side].append(1000 * seconds)
        before, now = statistics.median(times["other"]), statistics.median(times["this"])
        rows.append([name, before, now, now / before])
        print(f"{name}: {before:.1f} ms, {now:.1f} ms, {now / before:.2f}", file=sys.stderr, flush=True)
    headers = ["work", "other (ms)", "this (ms)", "ratio"]
    print(tabulate(rows, headers, floatfmt=".2f"))
    print(f"median ratio {statistics.median(row[3] for row in rows):.3f}")
    if arguments.json:
        result = {"rows": [dict(zip(headers, row, strict=True)) for row in rows], "environment": environment()}
        arguments.json.write_text(json.dumps(result, indent=2, default=str) + "\n")


if __name__ == "__main__":
    main()
