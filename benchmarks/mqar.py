"""Multi-query associative recall: what the states of causal mixers can hold, accuracy against their bytes.

    python benchmarks/mqar.py --out FOLDER [--length 128] [--pairs 8] [--dim 128] [--minutes 8] [--only NAME,...]
                              [--model KEY=VALUE ...] [--rate 1e-3,3e-3] [--batch 64] [--seed 0] [--device cuda]
                              [--picture FILE.png]

The task of Arora et al. 2023, "Zoology", https://arxiv.org/abs/2312.04927, with the settings of its figure 2: a row
names pairs of a key and a value, and later each key again, which asks for its value; 8,192 tokens, half of them keys
and half values, gaps by a power law (a = 0.01), zeros in between, two layers without feed-forward networks, one head;
lengths and pairs 64/4, 128/8, 256/16, widths 64 and 128. Here a model has a short convolution in front of each mixer
(`--model short_convolution=0` leaves it out), every step has new rows instead of some of 100,000, and the learning
rate stays what it is after 100 steps of warm-up. Logits and losses are those of the queries alone. Training ends at
an accuracy of 0.99 on 1,000 rows of their own, or when the time is over; what evaluations take does not count. Of
several learning rates, the table has the best, as the paper's figures do. NAME may have settings of its own:
`additive:forget=input`, and several mixers in turns: `local+additive`.

Rows of the table are appended to FOLDER/results.jsonl with commit and hardware. What is there is not repeated, and what
was stopped goes on from its last evaluation.
"""

import argparse
import itertools
import json
import sys
import time
from pathlib import Path
from typing import Any

import pictures
import torch
from model_settings import chosen
from tabulate import tabulate
from torch import Tensor

from longspan import LongspanForCausalLM, mixers
from longspan.machine.environment import environment

POWER = 0.01
ENOUGH = 0.99
TESTED = 1000
WARMUP = 100
# Tokens that are scored at once, and seconds of training between evaluations.
SCORED, BETWEEN = 1 << 14, 15.0
SHAPE: dict[str, Any] = {"depth": 2, "heads": 1, "feed_forward_dim": 0, "dropout": 0.0, "short_convolution": 4}


def recall_rows(rows: int, length: int, pairs: int, vocabulary: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return token ids (rows, length), and at queries the value that is asked for, -100 elsewhere."""
    generator = torch.Generator().manual_seed(seed)
    half, space = vocabulary // 2, length // 2 - pairs

    def drawn(weights: Tensor) -> Tensor:
        """Draw `pairs` of each row without replacement, by weights (n,): the first of exponential races."""
        race = torch.rand(rows, len(weights), generator=generator).log_() / weights
        return race.topk(pairs, 1).indices

    keys = 1 + drawn(torch.ones(half - 1))
    values = half + drawn(torch.ones(vocabulary - half))
    gaps = drawn(torch.arange(1, space + 1, dtype=torch.float64) ** (POWER - 1))
    ids, targets = torch.zeros(rows, length, dtype=torch.long), torch.full((rows, length), -100)
    ids[:, : 2 * pairs] = torch.stack((keys, values), 2).flatten(1)
    ids.scatter_(1, 2 * (pairs + gaps), keys)
    return ids, targets.scatter_(1, 2 * (pairs + gaps), values)


def logits_at(model: LongspanForCausalLM, ids: Tensor, asked: Tensor) -> Tensor:
    """Return the logits where `asked` (b, t) is True, (queries, vocabulary)."""
    hidden = model.longspan(ids).last_hidden_state[asked]
    logits: Tensor = model.lm_head(model.transform(hidden))
    return logits


@torch.no_grad()
def accuracy(model: LongspanForCausalLM, ids: Tensor, targets: Tensor) -> float:
    """Return the share of queries whose value has the largest logit."""
    model.eval()
    rows, right = max(1, SCORED // ids.shape[1]), 0
    for part, expected in zip(ids.split(rows), targets.split(rows), strict=True):
        right += int((logits_at(model, part, expected >= 0).argmax(1) == expected[expected >= 0]).sum())
    model.train()
    return right / int((targets >= 0).sum())


def state_bytes(model: LongspanForCausalLM, length: int) -> int:
    """Return the bytes of one row's state after `length` tokens."""
    with torch.no_grad():
        ids = torch.zeros(1, length, dtype=torch.long, device=model.device)
        states = model.longspan(ids, use_cache=True).past_key_values
    return int(states.nbytes)


def measure(args: argparse.Namespace, name: str, rate: float) -> dict[str, Any]:
    """Train one model, from where it was stopped, and return its row of the table."""
    torch.manual_seed(args.seed)
    mixer_names, own = name.partition(":")[0].split("+"), name.split(":")[1:]
    shape = {**SHAPE, "vocab_size": args.vocabulary, "dim": args.dim, "mixers": mixer_names, "pad_token_id": None}
    settings = shape | chosen([*args.model, *own], mixer_names)
    model = LongspanForCausalLM(LongspanForCausalLM.configured(**settings, causal=True)).to(args.device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.1)
    size = (args.length, args.pairs, args.vocabulary)
    # No training step has this seed.
    tests = [part.to(args.device) for part in recall_rows(TESTED, *size, seed=-1 - args.seed)]
    done: dict[str, Any] = {"steps": 0, "seconds": 0.0, "accuracy": 0.0}
    file = args.out / f"{key(args, name, rate)}.pt"
    if file.exists():
        saved = torch.load(file, weights_only=True, map_location=args.device)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        done = saved["done"]
    between = min(BETWEEN, args.minutes * 60)
    while done["accuracy"] < ENOUGH and done["seconds"] < args.minutes * 60:
        start = time.perf_counter()
        while (taken := time.perf_counter() - start) < between:
            done["steps"] += 1
            for group in optimizer.param_groups:
                group["lr"] = rate * min(1.0, done["steps"] / WARMUP)
            drawn = recall_rows(args.batch, *size, seed=args.seed * 10**7 + done["steps"])
            ids, targets = (part.to(args.device) for part in drawn)
            logits, asked = logits_at(model, ids, targets >= 0), targets[targets >= 0]
            torch.nn.functional.cross_entropy(logits, asked).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        done["seconds"] += taken
        done["accuracy"] = accuracy(model, *tests)
        print(f"{name}: step {done['steps']}, accuracy {done['accuracy']:.4f}", file=sys.stderr, flush=True)
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "done": done}, file)
    file.unlink(missing_ok=True)
    found = {"name": name, "state_bytes": state_bytes(model, args.length), "parameters": model.num_parameters()}
    return {**found, **done, "rate": rate, "key": key(args, name, rate)}


def key(args: argparse.Namespace, name: str, rate: float) -> str:
    """Return what tells a run from others."""
    size = f"{args.length}-{args.pairs}-{args.vocabulary}-{args.dim}"
    return "-".join([name, size, f"{args.minutes:g}min", f"{rate:g}", f"{args.batch}x{args.seed}", *args.model])


def finished(path: Path) -> dict[str, dict[str, Any]]:
    """Return the rows of a file by their keys."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {row["key"]: row for row in map(json.loads, lines)}


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw accuracy over the bytes of the state."""
    styles = itertools.cycle(itertools.product("os^DvPX<", ("none", None)))
    with pictures.curves(path, "bytes of one row's state", "accuracy at the queries", height=4.4) as axes:
        for row, (marker, filling) in zip(sorted(rows, key=lambda row: -float(row["accuracy"])), styles, strict=False):
            label = f"{row['name']}  {row['accuracy']:.3f}"
            axes.plot(row["state_bytes"], row["accuracy"], marker, markerfacecolor=filling, label=label, clip_on=False)
        axes.set_ylim(-0.03, 1.08)
        axes.set_xscale("log")
        axes.margins(x=0.15)


def main() -> None:
    described = [mixers.describe(name) for name in mixers.names()]
    causal = [each.name for each in described if each.causal and each.streaming]
    causal += [f"{name}:forget=input" for name in causal if "forget" in mixers.options(name)]
    parser = argparse.ArgumentParser(allow_abbrev=False, description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--vocabulary", type=int, default=8192)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--only", default=",".join(causal))
    parser.add_argument("--model", metavar="KEY=VALUE", nargs="*", default=[], help="more settings of every model")
    parser.add_argument("--rate", default="1e-3,3e-3", help="learning rates, of which the best counts")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--picture", type=Path, help="draw the table here, as PNG")
    args = parser.parse_args()
    if args.length % 2 or not 1 <= args.pairs <= args.length // 4 or args.vocabulary < 2 * args.pairs + 2:
        parser.error(
            "expected an even length of at least 4 tokens per pair, and a key and a value for each pair, got "
            f"length={args.length}, pairs={args.pairs} and vocabulary={args.vocabulary}; change them"
        )
    args.out.mkdir(parents=True, exist_ok=True)
    results, rows = args.out / "results.jsonl", []
    for name in args.only.split(","):
        found = []
        for rate in map(float, args.rate.split(",")):
            row = finished(results).get(key(args, name, rate))
            if row is None:
                row = measure(args, name, rate)
                with results.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({**row, "environment": environment()}) + "\n")
            found.append(row)
        rows.append(max(found, key=lambda row: float(row["accuracy"])))
    headers = ["mixer", "accuracy", "bytes of state", "learning rate", "steps", "minutes", "parameters"]
    cells = [
        [
            row["name"],
            f"{row['accuracy']:.4f}",
            f"{row['state_bytes']:,}",
            f"{row['rate']:g}",
            f"{row['steps']:,}",
            f"{row['seconds'] / 60:.1f}",
            f"{row['parameters']:,}",
        ]
        for row in sorted(rows, key=lambda row: -float(row["accuracy"]))
    ]
    print(tabulate(cells, headers, tablefmt="github", disable_numparse=True))
    if args.picture:
        draw(rows, args.picture)


if __name__ == "__main__":
    main()
