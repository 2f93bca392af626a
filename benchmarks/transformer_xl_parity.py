"""Converted Transformer-XL models against transformers' own: largest differences over three consecutive segments.

    python benchmarks/transformer_xl_parity.py --python ENVIRONMENT/bin/python [--json FILE]

ENVIRONMENT has the last transformers that Transformer-XL is in, without longspan, made once by

    python -m venv ENVIRONMENT && ENVIRONMENT/bin/pip install transformers==4.35.2 torch numpy sacremoses

There, models with random weights are made, saved by `save_pretrained`, and run over three segments, each going on from
the memories of the one before. Here they are converted, loaded and run over the same tokens. Differences are those of
log-probabilities of all tokens, in nats, and of the memories after each segment. It takes 3 GB of memory, and of disk.
"""

import argparse
import json
import os
import subprocess
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

SEGMENTS = 3
TARGET = 1e-4

#: What all have in common, by the names of `TransfoXLConfig`; `batch` rows of `segment` tokens are read at a time.
BASE: dict[str, Any] = {
    "vocab_size": 120,
    "cutoffs": [40, 80],
    "div_val": 1,
    "d_model": 32,
    "d_embed": 32,
    "d_inner": 48,
    "n_head": 4,
    "n_layer": 3,
    "mem_len": 8,
    "clamp_len": -1,
    "same_length": False,
    "untie_r": True,
    "tie_word_embeddings": True,
    "tie_projs": [False, True, True],
    "batch": 1,
    "segment": 8,
}

CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "div_val 1": {},
    "div_val 1, three rows": {"batch": 3},
    "div_val 4": {"div_val": 4},
    "div_val 4, three rows": {"div_val": 4, "batch": 3},
    "same_length": {"same_length": True},
    "same_length, div_val 4, three rows": {"same_length": True, "div_val": 4, "batch": 3},
    "clamp_len": {"clamp_len": 5},
    "clamp_len, same_length, div_val 4, three rows": {
        "clamp_len": 5, "same_length": True, "div_val": 4, "batch": 3, "segment": 5,
    },
    "segments shorter than the memory": {"segment": 3, "batch": 3},
    "segments longer than the memory": {"segment": 13, "batch": 3},
    "segments longer than the memory, same_length": {"segment": 13, "same_length": True, "batch": 3},
    "no memory": {"mem_len": 0},
    "shared r biases": {"untie_r": False, "batch": 3},
    "narrow embeddings": {"d_embed": 16},
    "narrow embeddings, no projection tied": {"d_embed": 16, "tie_projs": [False, False, False]},
    "div_val 2, all projections tied": {"div_val": 2, "tie_projs": [True, True, True]},
    "div_val 2, nothing tied": {"div_val": 2, "tie_projs": [False, False, False], "tie_word_embeddings": False},
    "no clusters": {"cutoffs": [], "tie_projs": [False]},
    "no clusters, narrow embeddings": {"cutoffs": [], "tie_projs": [False], "d_embed": 16},
}  # fmt: skip

#: The sizes of transfo-xl-wt103, 285 million weights.
WIKITEXT: dict[str, Any] = {
    "vocab_size": 267735, "cutoffs": [20000, 40000, 200000], "div_val": 4, "tie_projs": [False, True, True, True],
    "d_model": 1024, "d_embed": 1024, "d_inner": 4096, "n_head": 16, "n_layer": 18, "mem_len": 1600, "clamp_len": 1000,
    "same_length": True,
}  # fmt: skip


def configurations() -> dict[str, dict[str, Any]]:
    """Return all settings of each configuration."""
    return {name: BASE | changed for name, changed in {**CONFIGURATIONS, "transfo-xl-wt103": WIKITEXT}.items()}


def make(folder: Path) -> None:
    """Save models, and what they say of random tokens; for the environment with transformers 4.35."""
    warnings.simplefilter("ignore")
    from transformers import TransfoXLConfig, TransfoXLLMHeadModel

    for number, settings in enumerate(configurations().values()):
        torch.manual_seed(number)
        sizes = {name: value for name, value in settings.items() if name not in ("batch", "segment")}
        config = TransfoXLConfig(d_head=sizes["d_model"] // sizes["n_head"], **sizes)
        model = TransfoXLLMHeadModel(config).eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.normal_(std=config.d_model**-0.5).add_(float(name.endswith("layer_norm.weight")))
        target = folder / str(number)
        model.save_pretrained(target, safe_serialization=False)
        words = ["<eos>", "<unk>", *(f"w{word}" for word in range(config.vocab_size - 2))]
        (target / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
        found, memories = {}, None
        for segment in range(SEGMENTS):
            ids = torch.randint(config.vocab_size, (settings["batch"], settings["segment"]))
            with torch.no_grad():
                output = model(ids, mems=memories)
            memories = output.mems
            found |= {f"ids.{segment}": ids, f"log_probabilities.{segment}": output.logits.contiguous()}
            for layer, memory in enumerate(memories or []):
                found[f"memory.{segment}.{layer}"] = memory.transpose(0, 1).contiguous()
        save_file(found, target / "said.safetensors")


def compare(folder: Path) -> dict[str, dict[str, Any]]:
    """Convert the models that `make` saved and return the largest differences of each."""
    from transformers.utils import logging

    from longspan.convert import convert
    from longspan.models import LongspanForCausalLM

    logging.disable_progress_bar()
    result = {}
    for number, (name, settings) in enumerate(configurations().items()):
        source, run = folder / str(number), folder / f"{number}-converted"
        convert(source, run, progress=False)
        model = LongspanForCausalLM.from_pretrained(run).eval()
        said = load_file(source / "said.safetensors")
        states = model.longspan.init_states(settings["batch"])
        differences, of_memory = [], 0.0
        for segment in range(SEGMENTS):
            with torch.no_grad():
                output = model(said[f"ids.{segment}"], past_key_values=states)
            states = output.past_key_values
            differences.append(largest(output.logits, said[f"log_probabilities.{segment}"]))
            for layer, state in enumerate(states.layers):
                theirs = said.get(f"memory.{segment}.{layer}", state.memory[:, :0])
                # With same_length, nothing ever looks at the oldest position of theirs.
                of_memory = max(of_memory, largest(state.memory, theirs[:, theirs.shape[1] - state.memory.shape[1] :]))
        result[name] = {
            "batch": settings["batch"],
            "segment": settings["segment"],
            "memory": settings["mem_len"],
            "log_probabilities": differences,
            "memories": of_memory,
        }
    return result


def largest(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """Return the largest difference, 0 of nothing."""
    return (ours - theirs).abs().max().item() if ours.numel() else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__.partition("\n")[0])
    parser.add_argument("--python", type=Path, help="the python of an environment with transformers 4.35")
    parser.add_argument("--make", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path, help="write the result here")
    arguments = parser.parse_args()
    if arguments.make:
        make(arguments.make)
        return
    if not arguments.python:
        parser.error("expected --python, the python of an environment with transformers 4.35")
    from tabulate import tabulate

    from longspan.machine.environment import environment

    with tempfile.TemporaryDirectory() as folder:
        # transformers 4.35 asks for this before it opens a pickled vocabulary.
        asked = os.environ | {"TRUST_REMOTE_CODE": "True", "PYTHONWARNINGS": "ignore"}
        subprocess.run([arguments.python, __file__, "--make", folder], check=True, env=asked)
        result = compare(Path(folder))
    rows = [
        [name, row["batch"], row["segment"], row["memory"], *row["log_probabilities"], row["memories"]]
        for name, row in result.items()
    ]
    headers = ["configuration", "rows", "segment", "mem_len", "1st segment", "2nd segment", "3rd segment", "memories"]
    print(tabulate(rows, headers, floatfmt=".1e"))
    worst = max(max(*row["log_probabilities"], row["memories"]) for row in result.values())
    print(f"\nlargest difference: {worst:.1e}, expected at most {TARGET:.0e}")
    if arguments.json:
        arguments.json.write_text(json.dumps({"result": result, "environment": environment()}, indent=2) + "\n")
    if worst > TARGET:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
