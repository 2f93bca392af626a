"""Cross attention: how well decoders translate through each mixer that takes a context, by the length of the source.

    python benchmarks/cross_attention.py [--only NAME,...] [--lengths 5,40] [--dim 64] [--minutes 3] [--rate 2e-3]
                                         [--batch 32] [--seed 0] [--out FILE.jsonl]

An artificial language that any attention can translate: a sentence is made of phrases, a head (one of 8 tokens) and one
to four words (of 48), all drawn at random. The translation has the words of each phrase in reverse order, then its
head, each by a dictionary. So nothing but the source tells which token comes next. The encoder has two layers of
`softmax`, the decoder two of causal `softmax`, each followed by cross attention through the mixer; "none" leaves it
out. Only cross attention differs. NAME may have options: `bounded_memory:slots=8`.

Training sees new sentences at each step, for as many minutes of processor time, at a rate that falls to zero. Accuracy
is that of the next token, given those before it, on 1,000 sentences of their own.
"""

import argparse
import itertools
import json
import math
import sys
import time
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from longspan import mixers
from longspan.machine.environment import environment

PADDING, START, END, FIRST = 0, 1, 2, 3
HEADS, WORDS = 8, 48
VOCABULARY = FIRST + HEADS + WORDS
TESTED = 1000
WARMUP = 50


def sentences(rows: int, shortest: int, longest: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return sources (rows, longest) and targets (rows, longest + 2), between START and END, padded with zeros."""
    draw = torch.Generator().manual_seed(seed)
    dictionary = FIRST + torch.randperm(HEADS + WORDS, generator=torch.Generator().manual_seed(0))
    source, target = torch.zeros(rows, longest, dtype=torch.long), torch.zeros(rows, longest + 2, dtype=torch.long)
    lengths = torch.randint(shortest, longest + 1, (rows,), generator=draw).tolist()
    for row, length in enumerate(lengths):
        words = torch.randint(FIRST + HEADS, VOCABULARY, (length,), generator=draw)
        order, begin = torch.arange(length), 0
        while begin < length:
            end = min(length, begin + 2 + int(torch.randint(4, (), generator=draw)))
            words[begin] = FIRST + int(torch.randint(HEADS, (), generator=draw))
            order[begin:end] = order[begin:end].flip(0)
            begin = end
        source[row, :length] = words
        target[row, 0], target[row, length + 1] = START, END
        target[row, 1 : length + 1] = dictionary[words[order] - FIRST]
    return source, target


class Layer(nn.Module):
    """Mixer, cross attention if any, feed-forward; each normalised before and added."""

    def __init__(self, dim: int, mixer: mixers.Mixer, cross: mixers.Mixer | None = None) -> None:
        super().__init__()
        self.mixer, self.cross = mixer, cross
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(3))
        self.network = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x: Tensor, mask: Tensor, context: Tensor | None, context_mask: Tensor | None) -> Tensor:
        x = x + self.mixer(self.norms[0](x), mask)
        if self.cross is not None:
            x = x + self.cross(self.norms[1](x), mask, context=context, context_mask=context_mask)
        y: Tensor = x + self.network(self.norms[2](x))
        return y


class Translator(nn.Module):
    """Two layers that read the source, and two that write the target."""

    def __init__(self, dim: int, name: str, longest: int) -> None:
        super().__init__()
        name, *given = name.split(":")
        options = {key: json.loads(value) for key, _, value in (option.partition("=") for option in given)}
        build = mixers.build
        self.tokens = nn.ModuleList(nn.Embedding(VOCABULARY, dim) for _ in range(2))
        angles = torch.outer(torch.arange(longest + 2), 1000 ** (-torch.arange(0, dim, 2) / dim))
        self.register_buffer("places", torch.cat((angles.sin(), angles.cos()), 1))
        self.encoder = nn.ModuleList(Layer(dim, build("softmax", dim, heads=4)) for _ in range(2))
        self.decoder = nn.ModuleList(
            Layer(dim, build("softmax", dim, heads=4, causal=True), self.cross(dim, name, options)) for _ in range(2)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(2))
        self.output = nn.Linear(dim, VOCABULARY)

    @staticmethod
    def cross(dim: int, name: str, options: dict[str, Any]) -> mixers.Mixer | None:
        """Return the mixer called `name`, causal and with four heads if it has any."""
        if name == "none":
            return None
        heads = {"heads": 4} if "heads" in mixers.options(name) else {}
        return mixers.build(name, dim, causal=True, **heads | options)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Return the logits of what comes after each token of the target."""
        read, (there, here) = None, (source != PADDING, target != PADDING)
        x = self.tokens[0](source) + self.places[: source.shape[1]]
        for layer in self.encoder:
            x = layer(x, there, None, None)
        read = self.norms[0](x)
        y = self.tokens[1](target) + self.places[: target.shape[1]]
        for layer in self.decoder:
            y = layer(y, here, read, there)
        logits: Tensor = self.output(self.norms[1](y))
        return logits


def measure(args: argparse.Namespace, name: str) -> dict[str, Any]:
    """Train one model and return its row of the table."""
    torch.manual_seed(args.seed)
    shortest, longest = args.lengths
    model = Translator(args.dim, name, longest)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.rate, betas=(0.9, 0.98), weight_decay=0.01)
    start, step = time.process_time(), 0
    while (spent := (time.process_time() - start) / (60 * args.minutes)) < 1:
        step += 1
        for group in optimizer.param_groups:
            group["lr"] = args.rate * min(1.0, step / WARMUP) * math.cos(spent * math.pi / 2)
        source, target = sentences(args.batch, shortest, longest, seed=args.seed * 10**7 + step)
        logits, expected = model(source, target[:, :-1]), target[:, 1:]
        cross_entropy(logits.flatten(0, 1), expected.flatten(), ignore_index=PADDING).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    # No training step has this seed.
    source, target = sentences(TESTED, shortest, longest, seed=-1 - args.seed)
    with torch.no_grad():
        parts = [model(*part).argmax(2) for part in zip(source.split(100), target[:, :-1].split(100), strict=True)]
    expected, lengths = target[:, 1:], (source != PADDING).sum(1)
    real, right = expected != PADDING, torch.cat(parts) == expected
    bounds = torch.linspace(shortest - 1, longest, 4).round().long().tolist()
    found: dict[str, Any] = {"name": name, "steps": step, "accuracy": float(right[real].float().mean())}
    for low, high in itertools.pairwise(bounds):
        some = (lengths > low) & (lengths <= high)
        found[f"{low + 1}-{high}"] = float(right[some][real[some]].float().mean())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False, description=(__doc__ or "").partition("\n")[0])
    able = [name for name in mixers.names() if mixers.load(name).capabilities.context]
    parser.add_argument("--only", default=",".join(["none", *able]))
    parser.add_argument("--lengths", type=lambda given: [int(each) for each in given.split(",")], default=[5, 40])
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="append rows with commit and hardware to this file")
    args = parser.parse_args()
    rows = []
    for name in args.only.split(","):
        rows.append(measure(args, name))
        print(rows[-1], file=sys.stderr, flush=True)
        if args.out:
            given = {key: value for key, value in vars(args).items() if key not in ("only", "out")}
            with args.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps({**rows[-1], **given, "environment": environment()}) + "\n")
    cells = [[f"{cell:.3f}" if isinstance(cell, float) else cell for cell in row.values()] for row in rows]
    print(tabulate(cells, list(rows[0]), tablefmt="github", disable_numparse=True))


if __name__ == "__main__":
    main()
