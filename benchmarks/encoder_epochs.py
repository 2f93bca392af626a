"""Seconds of an epoch on a frozen encoder: with its outputs kept on disk, and with the encoder in each step.

    python benchmarks/encoder_epochs.py DATA [KEY=VALUE ...] [--encoder NAME] [--documents 200] [--window 256]
                                           [--repeats 3] [--json FILE]

DATA is a folder with one sub-folder of text files per class, of which the first documents of each are read. Without a
name, the encoder is a random BERT of 4 layers of width 256: what its outputs are worth does not matter to the time.
Epochs of both kinds take turns.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import datasets
import torch
from tabulate import tabulate
from transformers import BertConfig, BertModel, TrainingArguments, set_seed

from longspan import recipes
from longspan.cli import quieten_transformers, use_fastest_exact_products
from longspan.data.config import DataConfig
from longspan.data.text.tokenization import build_tokenizer
from longspan.machine.environment import environment
from longspan.training.encoder_outputs import EncoderOutputs
from longspan.training.lengths import LengthTrainer


def read(data: Path, documents: int) -> list[dict[str, str]]:
    """Return the first documents of each class, as many of each."""
    classes = sorted(path for path in data.iterdir() if path.is_dir() and path.name != "unsup")
    files = [path for each in classes for path in sorted(each.glob("*.txt"))[: documents // len(classes)]]
    return [{"text": path.read_text(encoding="utf-8"), "label": path.parent.name} for path in files]


def make_encoder(folder: Path, texts: list[str]) -> None:
    """Write a random encoder with a tokenizer of 8,000 pieces learned from texts."""
    tokenizer = build_tokenizer(DataConfig(vocab_size=8000), texts)
    tokenizer.save_pretrained(folder)
    set_seed(0)
    size = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024}
    BertModel(BertConfig(vocab_size=len(tokenizer), **size)).save_pretrained(folder)


def epoch(trainer: LengthTrainer) -> float:
    """Take the steps of an epoch and return the seconds."""
    model = trainer.model.train()
    optimizer = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad])
    start = time.perf_counter()
    for batch in trainer.get_train_dataloader():
        model(**{name: tensor.to(model.device) for name, tensor in batch.items()}).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__.partition("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("overrides", nargs="*", help="of the recipe classify, such as model.dim=256")
    parser.add_argument("--encoder", default="", help="folder or name; by default a random BERT")
    parser.add_argument("--documents", type=int, default=200)
    parser.add_argument("--window", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=3, help="timed epochs of each kind")
    parser.add_argument("--json", type=Path, help="write the result here")
    arguments = parser.parse_args()
    quieten_transformers()
    use_fastest_exact_products()
    with tempfile.TemporaryDirectory() as place:
        # Nothing that was computed before counts.
        datasets.config.HF_DATASETS_CACHE = Path(place, "cache")
        rows = read(arguments.data, arguments.documents)
        file = Path(place, "data.jsonl")
        file.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
        if not arguments.encoder:
            make_encoder(Path(place, "encoder"), [row["text"] for row in rows])
        named = [f"model.encoder={arguments.encoder or Path(place, 'encoder')}"]
        named += [f"model.encoder_window={arguments.window}", "model.wide=false", f"data.path={file}"]
        recipe = recipes.load("classify", [*named, *arguments.overrides])
        prepared = recipe.task.prepare(recipe)
        start = time.perf_counter()
        model = recipe.task.build_model(recipe, prepared)
        once = time.perf_counter() - start
        given = TrainingArguments(output_dir=str(Path(place, "run")), per_device_train_batch_size=32, disable_tqdm=True)
        kept = recipe.task.make_trainer(recipe, model, given, prepared)
        computed = recipe.task.make_trainer(recipe, model, given, prepared)
        assert isinstance(kept.encoder_outputs, EncoderOutputs)
        computed.encoder_outputs = None
        # One of each to warm up.
        seconds = [(epoch(kept), epoch(computed)) for _ in range(1 + arguments.repeats)][1:]
    fast, slow = (statistics.median(times) for times in zip(*seconds, strict=True))
    tokens = sum(prepared.splits["train"]["length"])
    result = {"tokens": tokens, "once": once, "kept": fast, "computed": slow, "ratio": slow / fast}
    shown = [[f"{tokens:,}", f"{once:.1f}", f"{fast:.2f}", f"{slow:.2f}", f"{slow / fast:.1f}"]]
    print(tabulate(shown, ["tokens", "computing once, s", "epoch, kept, s", "epoch, computed, s", "times faster"]))
    if arguments.json:
        arguments.json.write_text(json.dumps({"environment": environment(), "result": result}, indent=2))


if __name__ == "__main__":
    main()
