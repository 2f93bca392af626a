"""A small GPT-2 trained with softmax attention, then with mixers in its place: what is lost and what tuning regains.

    python benchmarks/replace_attention.py [--steps 300] [--tuning 100] [--mixers softmax,linear,local] [--json FILE]

The text is the source code of Python's standard library, as bytes; every tenth module is held out. Numbers are bits per
byte there. A model with the mixer and new weights everywhere is trained for the steps of tuning, too.
"""

import argparse
import copy
import json
import math
import sysconfig
import time
from pathlib import Path

import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

import longspan

LENGTH, ROWS, WIDTH, LAYERS = 192, 12, 96, 3
MIXERS = "softmax,local,linear,gated_linear,delta,bounded_memory,additive,recurrent"


def texts() -> tuple[Tensor, Tensor]:
    """Bytes for training and held-out bytes."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    parts = [
        b"".join(path.read_bytes() for path in chosen)
        for chosen in ([path for number, path in enumerate(files) if number % 10], files[::10])
    ]
    train, test = (torch.frombuffer(bytearray(part), dtype=torch.uint8).long() for part in parts)
    return train, test


def model() -> GPT2LMHeadModel:
    """A GPT-2 of bytes with new weights."""
    torch.manual_seed(0)
    sizes = {"n_embd": WIDTH, "n_layer": LAYERS, "n_head": 4, "n_positions": LENGTH}
    dropout = {"attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0}
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=256, use_cache=False, bos_token_id=0, eos_token_id=0, **sizes, **dropout)
    )


def fit(net: GPT2LMHeadModel, train: Tensor, steps: int, rate: float) -> float:
    """Train for some steps with a falling rate, and return the processor seconds."""
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.AdamW(net.parameters(), lr=rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=max(steps, 1), pct_start=0.1)
    net.train()
    start = time.process_time()
    for _ in range(steps):
        places = torch.randint(len(train) - LENGTH, (ROWS, 1), generator=generator) + torch.arange(LENGTH)
        batch = train[places]
        loss = net(batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return time.process_time() - start


@torch.no_grad()
def bits(net: GPT2LMHeadModel, test: Tensor) -> float:
    """Bits per byte of windows spread over the held-out text."""
    net.eval()
    starts = torch.linspace(0, len(test) - LENGTH - 1, 96).long()
    batches = (test[part.unsqueeze(1) + torch.arange(LENGTH)] for part in starts.split(16))
    losses = [float(net(batch, labels=batch).loss) for batch in batches]
    return sum(losses) / len(losses) / math.log(2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300, help="steps with softmax attention")
    parser.add_argument("--tuning", type=int, default=100, help="steps after the replacement")
    parser.add_argument("--mixers", default=MIXERS, help="mixers, separated by commas")
    parser.add_argument("--json", type=Path, help="file to write")
    given = parser.parse_args()
    train, test = texts()
    trained = model()
    fit(trained, train, given.steps, 2e-3)
    found = {"attention": {"trained": bits(trained, test)}}
    print(f"attention: {found['attention']['trained']:.3f} bits per byte after {given.steps} steps", flush=True)
    for mixer in given.mixers.split(","):
        net, fresh = copy.deepcopy(trained), model()
        report = longspan.replace_attention(net, mixer)
        longspan.replace_attention(fresh, mixer)
        row = {"replaced": bits(net, test)}
        row["seconds"] = fit(net, train, given.tuning, 1e-3)
        row["tuned"] = bits(net, test)
        fit(fresh, train, given.tuning, 2e-3)
        row["scratch"] = bits(fresh, test)
        found[mixer] = row
        kept = ", ".join(report.modules[0].kept) or "none"
        print(
            f"{mixer}: {row['replaced']:.3f} replaced, {row['tuned']:.3f} after {given.tuning} steps; with new weights "
            f"everywhere {row['scratch']:.3f} after as many; kept: {kept}",
            flush=True,
        )
    if given.json:
        given.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
