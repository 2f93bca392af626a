"""Cost and quality of translation against the length of the source: the same sentences, in blocks.

    python benchmarks/source_length.py join SOURCES TARGETS FOLDER [--seed 0]
    python benchmarks/source_length.py score RUN ... --data SOURCES TARGETS --results DIR [--checkpoint last]
    python benchmarks/source_length.py tables --results DIR [--figure FILE]

`join` writes parallel files for training (FOLDER/blocks.source and .target): neighbours of a shuffled text are joined
to blocks of 1 to 256 sentences, as many sentences in blocks of each size. `score` joins the test sentences to blocks of
1, 4, 16, ... sentences and translates each size by greedy search: BLEU of the blocks, nats per token of the references,
and seconds of the processor for reading a source, per token, and for each token of a translation. Each size of each run
is one file, so that a stopped comparison continues. `tables` prints what is there.
"""

import argparse
import json
import random
import time
from pathlib import Path
from typing import Any

import torch
from pictures import curves
from sacrebleu.metrics.bleu import BLEU

import longspan
from longspan.cli import use_fastest_exact_products
from longspan.data.batches.streams import pad
from longspan.data.text.tokenization import encode_counted, token_ids
from longspan.tasks.base.seq2seq.search import Search, search, target_losses
from longspan.tasks.base.task import Run
from longspan.training.lengths import scoring_batches

SIZES = (1, 4, 16, 64, 256)
#: Positions of sources and targets that are translated at once.
TOGETHER = 16_384


def lines(path: str) -> list[str]:
    return Path(path).read_text(encoding="utf-8").splitlines()


def blocks(texts: list[str], size: int) -> list[str]:
    return [" ".join(texts[start : start + size]) for start in range(0, len(texts), size)]


def join(sources: str, targets: str, folder: Path, seed: int) -> None:
    pairs = list(zip(lines(sources), lines(targets), strict=True))
    random.Random(seed).shuffle(pairs)
    share, joined = len(pairs) // len(SIZES), ([], [])  # type: tuple[list[str], list[str]]
    for place, size in enumerate(SIZES):
        part = pairs[place * share : (place + 1) * share]
        for side in (0, 1):
            joined[side].extend(blocks([pair[side] for pair in part], size))
    folder.mkdir(parents=True, exist_ok=True)
    for name, texts in zip(("source", "target"), joined, strict=True):
        (folder / f"blocks.{name}").write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")


def scored(run: Run, sources: list[str], targets: list[str]) -> dict[str, Any]:
    """Return what a table says about one size of blocks."""
    reader, model = run.processor, run.model.eval()
    streams, end = reader.streams, run.model.generation_config.eos_token_id
    read = [ids for ids, _ in encode_counted(reader.tokenizer, sources, run.recipe.data)]
    wanted = [[*ids.tolist(), end] for ids in token_ids(reader.tokenizer, targets)]
    pairs = [{"input_ids": ids, "labels": labels} for ids, labels in zip(read, wanted, strict=True)]
    together = scoring_batches(torch.tensor([[len(ids)] * 2 for ids in read]).numpy(), 512, TOGETHER)
    losses = target_losses(model, pairs, together, streams)
    longest = max(map(len, read))
    how = Search(beams=1, batch_size=512, batch_tokens=TOGETHER)
    with torch.inference_mode():
        start = time.process_time()
        for batch in together:
            padded = pad([{"input_ids": read[row]} for row in batch], {"input_ids": streams["input_ids"]})
            model.get_encoder()(**padded)
        reading = time.process_time() - start
        found = [best[0] for best in search(model, read, how, streams).targets]
        # One block alone, for the cost of a token that does not depend on what is translated beside it.
        middle = read[len(read) // 2]
        steps = 200
        start = time.process_time()
        model.generate(torch.tensor([middle]), max_new_tokens=steps, min_new_tokens=steps, num_beams=1, do_sample=False)
        writing = time.process_time() - start
    tokens = sum(map(len, read))
    bleu = BLEU()
    texts = reader.texts(found)
    return {
        "longest": longest,
        "mean": tokens / len(read),
        "bleu": bleu.corpus_score(texts, [targets]).score,
        "signature": str(bleu.get_signature()),
        "loss": float(losses[:, 0].sum() / losses[:, 1].sum()),
        "length": sum(map(len, found)) / sum(len(ids) - 1 for ids in wanted),
        "read_us": 1e6 * reading / tokens,
        "write_ms": 1e3 * writing / steps,
    }


def score(runs: list[str], data: tuple[str, str], results: Path, checkpoint: str | None) -> None:
    use_fastest_exact_products()
    results.mkdir(parents=True, exist_ok=True)
    sources, targets = map(lines, data)
    for folder in runs:
        for size in SIZES:
            path = results / f"{Path(folder).name}-{size}.json"
            if path.exists():
                continue
            found = scored(longspan.load(folder, checkpoint=checkpoint), blocks(sources, size), blocks(targets, size))
            path.write_text(json.dumps({"run": Path(folder).name, "size": size, **found}))
            print(f"{Path(folder).name}, {size} sentences: BLEU {found['bleu']:.1f}", flush=True)


def tables(results: Path, figure: Path | None) -> None:
    found = sorted((json.loads(path.read_text()) for path in results.glob("*.json")), key=lambda row: row["size"])
    print("| model | sentences | tokens (mean) | BLEU | length | nats | read, us a token | write, ms a token |")
    print("|---|---|---|---|---|---|---|---|")
    for row in sorted(found, key=lambda row: row["run"]):
        scores = f"{row['bleu']:.1f} | {row['length']:.2f} | {row['loss']:.3f}"
        costs = f"{row['read_us']:.0f} | {row['write_ms']:.1f}"
        print(f"| {row['run']} | {row['size']} | {row['mean']:.0f} | {scores} | {costs} |")
    if figure is None:
        return
    for name, ylabel in (("bleu", "BLEU"), ("write_ms", "milliseconds per token")):
        with curves(figure.with_stem(f"{figure.stem}-{name}"), "tokens of the source (mean)", ylabel) as axes:
            for run in sorted({row["run"] for row in found}):
                rows = [row for row in found if row["run"] == run]
                axes.plot([row["mean"] for row in rows], [row[name] for row in rows], marker="o", label=run)
            axes.set_xscale("log")


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__.partition("\n")[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    joining = verbs.add_parser("join")
    joining.add_argument("sources")
    joining.add_argument("targets")
    joining.add_argument("folder", type=Path)
    joining.add_argument("--seed", type=int, default=0)
    scoring = verbs.add_parser("score")
    scoring.add_argument("runs", nargs="+")
    scoring.add_argument("--data", nargs=2, required=True)
    scoring.add_argument("--results", type=Path, required=True)
    scoring.add_argument("--checkpoint", help="step of the checkpoint, or last, of runs that were stopped")
    telling = verbs.add_parser("tables")
    telling.add_argument("--results", type=Path, required=True)
    telling.add_argument("--figure", type=Path)
    arguments = parser.parse_args()
    if arguments.verb == "join":
        join(arguments.sources, arguments.targets, arguments.folder, arguments.seed)
    elif arguments.verb == "score":
        score(arguments.runs, tuple(arguments.data), arguments.results, arguments.checkpoint)
    else:
        tables(arguments.results, arguments.figure)


if __name__ == "__main__":
    main()
