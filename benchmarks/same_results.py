"""Whether this checkout gives the same results as another one, to the bit: every task on generated data, in one thread.

    python benchmarks/same_results.py OTHER_CHECKOUT [--tasks document_pairs,translation] [--cache DIR] [--json FILE]

    git worktree add ../before COMMIT && python benchmarks/same_results.py ../before

For each task, the public Python API trains and scores a small model, and gives predictions (one row is bad) and
explanations. Compared are losses and scores of the history, the final scores, the number of parameters, evaluations,
all fields of predictions, and explanations; not times, paths and memory. Parts that differ or fail are listed, and
the exit code is 1 if there are any. Other cores may round otherwise: compare on one machine.
"""

import argparse
import hashlib
import json
import multiprocessing
import os
import random
import re
import subprocess
import sys
import tempfile
import traceback
import wave
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parents[1]
SMALL = ["model.dim=16", "model.heads=2", "training.max_minutes=0"]
#: Keys of results that differ between runs of the same code.
IGNORED = ("second", "minutes", "time", "memory", "folder", "version", "commit")
WORDS = [f"word{number}" for number in range(120)]
TONES = {"high": 2000.0, "low": 300.0}
RATE = 8000


@dataclass(frozen=True)
class Case:
    """A run of a task.

    Attributes:
        recipe: Name of the recipe.
        overrides: Settings beside those of `SMALL`.
        source: File or folder to predict, one row of which is bad.
        row: Row to explain, from 1.
        reading: Settings with which the source is read.
        prompts: Prompts to continue.
    """

    recipe: str
    overrides: tuple[str, ...]
    source: str
    row: int = 1
    reading: tuple[str, ...] = ()
    prompts: tuple[str, ...] = ()


EPOCHS = ("training.num_train_epochs=2",)
QUICK = (*EPOCHS, "training.min_steps=0")
ROWS = ("training.segment_length=32", "training.per_device_train_batch_size=8", "training.max_steps=12")
DEPTH = ("model.depth=1", "model.feed_forward_dim=32")
TARGETS = ("data.vocab_size=320", *DEPTH, "training.max_steps=12", "training.warmup_steps=4", "training.min_steps=0")
TESTED = ("data.test_fraction=0.2", "data.validation_fraction=0.2")
CASES = {
    "audio_classification": Case(
        "audio", ("data.path=sounds.csv", "data.bands=12", *DEPTH, *TESTED, *EPOCHS), "sounds-new.csv"
    ),
    "document_classification": Case("classify", ("data.path=classes.jsonl", *TESTED, *QUICK), "classes-new.jsonl"),
    "document_pairs": Case("pairs", ("data.path=pairs.jsonl", *TESTED, *QUICK), "pairs-new.jsonl"),
    "document_regression": Case("regression", ("data.path=numbers.jsonl", *TESTED, *QUICK), "classes-new.jsonl"),
    "evidence": Case("evidence", ("data.path=talks.jsonl", *TESTED, *EPOCHS), "talks-new.jsonl"),
    "frame_labelling": Case(
        "frames", ("data.path=segments.jsonl", "data.bands=12", *DEPTH, *TESTED, *EPOCHS), "segments-new.jsonl"
    ),
    "graph_classification": Case(
        "graphs",
        ("data.path=graphs.jsonl", "data.walk_positions=2", "model.depth=2", *TESTED, *QUICK),
        "graphs-new.jsonl",
    ),
    "image_classification": Case(
        "images", ("data.path=images.csv", "model.depth=1", "model.stem=8", *TESTED, *EPOCHS), "images-new.csv"
    ),
    "language_modelling": Case(
        "model-text",
        ("data.path=text.txt", *DEPTH, "data.vocab_size=300", *TESTED, "training.max_steps=12"),
        "classes-new.jsonl",
        prompts=("word1 word2", "word7"),
    ),
    "masked_spans": Case("masked-spans", ("data.path=classes.jsonl", *TESTED, *TARGETS), "blanks.jsonl"),
    "masked_words": Case(
        "masked-words",
        ("data.path=classes.jsonl", "data.tokens=words", *DEPTH, *TESTED, *ROWS),
        "blanks.jsonl",
    ),
    "multi_label_classification": Case(
        "multi-label", ("data.path=labels.jsonl", *TESTED, *QUICK), "classes-new.jsonl"
    ),
    "node_classification": Case(
        "nodes", ("data.path=nodes.csv", "data.edges=edges.csv", *TESTED, *EPOCHS), "nodes.csv", row=3
    ),
    "question_answering": Case(
        "question-answering",
        ("data.path=questions.jsonl", "data.vocab_size=300", *DEPTH, *TESTED, *QUICK),
        "questions-new.jsonl",
    ),
    "recommendation": Case(
        "news",
        ("data.path=clicks.csv", *TESTED, *EPOCHS),
        "clicks-new.csv",
        row=18,
        reading=("data.skip_bad_rows=true",),
    ),
    "summarisation": Case("summarisation", ("data.path=summaries.jsonl", *TESTED, *TARGETS), "summaries-new.jsonl"),
    "token_classification": Case("ner", ("data.path=tagged.jsonl", *DEPTH, *TESTED, *EPOCHS), "tagged-new.jsonl"),
    "translation": Case("translation", ("data.path=translated.jsonl", *TESTED, *TARGETS), "translated-new.jsonl"),
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__.partition("\n")[0])
    parser.add_argument("other", type=Path, help="the other checkout")
    parser.add_argument("--tasks", default=",".join(CASES), help="tasks, separated by commas; by default all")
    parser.add_argument("--cache", type=Path, help="folder that keeps the other checkout's results, by its commit")
    parser.add_argument("--json", type=Path, help="file for all differences")
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    tasks = arguments.tasks.split(",")
    if unknown := set(tasks) - set(CASES):
        parser.error(f"expected tasks of {', '.join(CASES)}, got {', '.join(sorted(unknown))}")
    if arguments.out:
        write_results(tasks, arguments.out)
        return
    differing = {}
    with tempfile.TemporaryDirectory() as name:
        write_data(Path(name))
        before = cached_results(arguments.other.resolve(), tasks, Path(name), arguments.cache)
        now = results_of(HERE, tasks, Path(name) / "now")
        for task in tasks:
            differing[task] = list(differences(before[task], now[task]))
            differ = {re.split(r"[.\[]", path)[0] for path, *_ in differing[task]}
            parts = {**before[task], **now[task]}
            if "failure" in parts and not differ:
                differing[task] = [("failure", before[task]["failure"], now[task]["failure"])]
            said = [f"{part} {'NOT ' * (part in differ)}the same" for part in parts]
            print(f"{task}: {', '.join(said)}", *map(shown, differing[task][:3]), sep="\n    ", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(differing, indent=2), encoding="utf-8")
    changed = [task for task, found in differing.items() if found]
    print(f"NOT the same or failing: {', '.join(changed)}" if changed else f"the same: all {len(tasks)} tasks")
    sys.exit(bool(changed))


def cached_results(checkout: Path, tasks: list[str], folder: Path, cache: Path | None) -> dict[str, Any]:
    """Results of another checkout, from the cache where it has them: by commit and by the text of this script."""
    git = ["git", "-C", str(checkout)]
    commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    changed = subprocess.run([*git, "status", "--porcelain", "src"], capture_output=True, check=False).stdout
    if cache is None or not commit or changed:
        return results_of(checkout, tasks, folder / "before")
    cache.mkdir(parents=True, exist_ok=True)
    script = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]
    files = {task: cache / f"{commit[:12]}-{script}-{task}.json" for task in tasks}
    if missing := [task for task in tasks if not files[task].is_file()]:
        for task, found in results_of(checkout, missing, folder / "before").items():
            files[task].write_text(json.dumps(found), encoding="utf-8")
    return {task: json.loads(file.read_text(encoding="utf-8")) for task, file in files.items()}


def results_of(checkout: Path, tasks: list[str], out: Path) -> dict[str, Any]:
    """Results of a checkout, from a process of its own."""
    out.mkdir()
    command = [
        sys.executable,
        str(Path(__file__).resolve()),
        str(checkout),
        "--tasks",
        ",".join(tasks),
        "--out",
        out.name,
    ]
    # Data that the other checkout read are not this one's.
    own = {
        "PYTHONPATH": str(checkout / "src"),
        "HF_HOME": str(out / "home"),
        "OMP_NUM_THREADS": "1",
        "MPLBACKEND": "agg",
    }
    with (out / "log.txt").open("w") as log:
        subprocess.run(command, cwd=out.parent, env={**os.environ, **own}, stderr=log, stdout=log, check=False)
    if missing := [task for task in tasks if not (out / f"{task}.json").is_file()]:
        sys.exit(f"{checkout}: no results of {', '.join(missing)}\n{(out / 'log.txt').read_text()[-3000:]}")
    return {task: json.loads((out / f"{task}.json").read_text(encoding="utf-8")) for task in tasks}


def write_results(tasks: list[str], out: Path) -> None:
    """Write the results of the checkout that Python finds, task by task, each from a process with nothing of others."""
    import longspan.verbs.evaluate
    import longspan.verbs.train  # noqa: F401

    forked = multiprocessing.get_context("fork")
    for task in tasks:
        process = forked.Process(target=write_task, args=(task, out))
        process.start()
        process.join()


def write_task(task: str, out: Path) -> None:
    """Write the results of a task, and how it fails if it does."""
    found: dict[str, Any] = {}
    try:
        found.update(task_results(CASES[task], out / task))
    except Exception as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        found["failure"] = f"{type(error).__name__} in line {at.lineno} of {Path(at.filename).name}: {error}"
    written = json.dumps(comparable(found), default=str).replace(str(Path.cwd()), "").replace(f"{out.name}/", "")
    (out / f"{task}.json").write_text(written, encoding="utf-8")


def task_results(case: Case, run: Path) -> Iterator[tuple[str, Any]]:
    """Results that the code at hand gives for a task, each with its name."""
    import longspan

    yield "training", longspan.train(case.recipe, [*SMALL, *case.overrides], run=run, progress=False).to_dict()
    yield "evaluation", longspan.evaluate(run).to_dict()
    reading = list(case.reading)
    yield "predictions", [row.to_dict() for row in longspan.predict(run, case.source, overrides=reading)]
    for method in ("removal", "gradient"):
        explained = longspan.explain(run, case.source, row=case.row, method=method, overrides=reading)
        yield f"explanation by {method}", explained.to_dict()
    if case.prompts:
        yield "generated", ["".join(longspan.generate(run, prompt, max_new_tokens=20)) for prompt in case.prompts]


def comparable(found: Any) -> Any:
    """Results without what differs between runs of the same code."""
    if isinstance(found, dict):
        return {str(k): comparable(v) for k, v in found.items() if not any(word in str(k) for word in IGNORED)}
    return [comparable(each) for each in found] if isinstance(found, list | tuple) else found


def differences(before: Any, now: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Each place where two results differ, with both values."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in {**before, **now}:
            yield from differences(before.get(key), now.get(key), f"{path}.{key}".lstrip("."))
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for number, pair in enumerate(zip(before, now, strict=True)):
            yield from differences(*pair, f"{path}[{number}]")
    elif json.dumps(before) != json.dumps(now):
        yield path, before, now


def shown(difference: tuple[str, Any, Any]) -> str:
    path, before, now = difference
    return f"{path}: {json.dumps(before)[:100]} became {json.dumps(now)[:100]}"


def write_data(folder: Path) -> None:
    """Write the data of all tasks."""
    draw = random.Random(0)

    def text(count: int, first: int = 0) -> str:
        return " ".join(draw.choices(WORDS[first::2] + WORDS[:20], k=count))

    classes = [{"text": text(draw.randint(3, 30), n % 2), "label": "ab"[n % 2]} for n in range(120)]
    write_rows(folder / "classes.jsonl", classes)
    write_rows(
        folder / "classes-new.jsonl", [*classes[:4], {"text": None}, {"text": "word1 new"}, {"text": "word3 " * 90}]
    )
    write_rows(folder / "numbers.jsonl", [{**row, "label": len(row["text"]) / 7} for row in classes])
    tags = [[name for name in "ab" if draw.random() < 0.3 + 0.5 * (row["label"] == name)] for row in classes]
    write_rows(
        folder / "labels.jsonl", [{"text": row["text"], "labels": own} for row, own in zip(classes, tags, strict=True)]
    )
    (folder / "text.txt").write_text("\n".join(text(40, n % 2) for n in range(80)) + "\n", encoding="utf-8")
    blanks = [{"text": f"{text(4)} <mask> {text(3)}"} for _ in range(5)]
    write_rows(folder / "blanks.jsonl", [*blanks, {"text": None}, {"text": "word1 word2"}])
    pairs = [{"first": text(9, n % 2), "second": text(6, n // 2 % 2)} for n in range(120)]
    kinds = ("same", "other")
    write_rows(folder / "pairs.jsonl", [{**row, "label": kinds[(n + n // 2) % 2]} for n, row in enumerate(pairs)])
    write_rows(folder / "pairs-new.jsonl", [*pairs[:4], {"first": None, "second": "word1"}, *pairs[4:6]])

    talks = []
    for _ in range(24):
        topics = draw.sample(WORDS, 4)
        spoken = [f"{text(5)} {topic}" for topic in topics for _ in range(3)]
        questions = [{"question": f"what of {topics[n]}", "evidence": [3 * n, 3 * n + 1, 3 * n + 2]} for n in (0, 2)]
        talks.append({"parts": spoken, "questions": questions})
    write_rows(folder / "talks.jsonl", talks)
    asked = [{"parts": row["parts"], "questions": [row["questions"][0]["question"]]} for row in talks[:3]]
    write_rows(folder / "talks-new.jsonl", [*asked, {"parts": None, "questions": ["what"]}])

    questions = []
    for number in range(90):
        names = draw.sample(WORDS, 3)
        facts = [f"{name} has {draw.randint(100, 999)}." for name in names]
        context, at = " So it is. ".join(facts), draw.randrange(3)
        start = context.index(facts[at]) + len(names[at]) + 5
        answers = (
            {"text": [facts[at][-4:-1]], "answer_start": [start]} if number % 5 else {"text": [], "answer_start": []}
        )
        questions.append({"question": f"What has {names[at]}?", "context": context, "answers": answers})
    write_rows(folder / "questions.jsonl", questions)
    new = [{"question": row["question"], "context": row["context"]} for row in questions[:5]]
    write_rows(folder / "questions-new.jsonl", [*new, {"question": "What?", "context": None}])

    clicks = ["user,title,clicked,time"]
    for number in range(80):
        own, others = draw.randrange(10), draw.sample(range(10), 3)
        shown_items = [(2 * own + number % 2, 1), *((2 * item + (number + 1) % 2, 0) for item in others)]
        clicks += [
            f"u{number % 16},{WORDS[item % 2]} {WORDS[item]} {WORDS[item + 40]},{c},{number}" for item, c in shown_items
        ]
    (folder / "clicks.csv").write_text("\n".join(clicks) + "\n", encoding="utf-8")
    (folder / "clicks-new.csv").write_text("\n".join([*clicks[:161], "u1,,0,90"]) + "\n", encoding="utf-8")

    summaries = []
    for _ in range(60):
        thing, choice = draw.choice(WORDS[:10]), draw.choice(WORDS[10:20])
        document = f"{text(12)} the {thing} must be {choice} . {text(8)}"
        summaries.append({"document": document, "question": f"What of {thing}?", "summary": f"{thing} is {choice}."})
    write_rows(folder / "summaries.jsonl", summaries)
    new = [{name: row[name] for name in ("document", "question")} for row in summaries[:4]]
    write_rows(folder / "summaries-new.jsonl", [*new, {"document": None, "question": "What?"}])

    tagged = []
    for _ in range(90):
        chosen = draw.choices(WORDS, k=draw.randint(3, 12))
        tagged.append({"tokens": chosen, "labels": ["B-PER" if word.endswith("7") else "O" for word in chosen]})
    write_rows(folder / "tagged.jsonl", tagged)
    write_rows(folder / "tagged-new.jsonl", [*({"tokens": row["tokens"]} for row in tagged[:4]), {"tokens": None}])

    translated = []
    for _ in range(90):
        chosen = draw.sample(WORDS[:30], 4)
        translated.append({"source": " ".join(chosen), "target": " ".join(word.upper() for word in chosen[::-1])})
    write_rows(folder / "translated.jsonl", translated)
    write_rows(
        folder / "translated-new.jsonl", [*({"source": row["source"]} for row in translated[:4]), {"source": None}]
    )
    write_graphs(folder, draw)
    write_signals(folder)


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def write_graphs(folder: Path, draw: random.Random) -> None:
    """Write paths whose ends are alike or not, and a ring in two halves."""
    graphs = []
    for _ in range(80):
        ends = draw.choice("rb"), draw.choice("rb")
        nodes = [*ends[0] * draw.randint(1, 4), *"n" * draw.randint(2, 6), *ends[1] * draw.randint(1, 4)]
        edges = [[number, number + 1] for number in range(len(nodes) - 1)]
        graphs.append({"nodes": nodes, "edges": edges, "label": "same" if ends[0] == ends[1] else "other"})
    write_rows(folder / "graphs.jsonl", graphs)
    new = [{"nodes": row["nodes"], "edges": row["edges"]} for row in graphs[:4]]
    write_rows(folder / "graphs-new.jsonl", [*new, {"nodes": ["r", "b"], "edges": [[0, 7]]}])
    rows = [f"{n},{n < 30:d}.{draw.randint(0, 99):02},0.{draw.randint(0, 99):02},{'ab'[n < 30]}" for n in range(60)]
    (folder / "nodes.csv").write_text("\n".join(["node,near,far,label", *rows]), encoding="utf-8")
    edges = [f"{n},{(n + 1) % 60}" for n in range(60)]
    (folder / "edges.csv").write_text("\n".join(["source,target", *edges]), encoding="utf-8")


def write_signals(folder: Path) -> None:
    """Write recordings of tones, tables of their segments, and images of one bright half."""
    from PIL import Image

    drawn = np.random.default_rng(0)
    sounds, segments, images = ["recording,label"], [], ["image,label"]
    for number in range(36):
        name = [*TONES][number % 2]
        length = int(RATE * drawn.uniform(0.2, 0.4))
        sound = 0.02 * drawn.standard_normal(2 * length)
        sound[length:] += 0.3 * np.sin(2 * np.pi * TONES[name] * np.arange(length) / RATE)
        with wave.open(str(folder / f"{number}.wav"), "wb") as file:
            file.setparams((1, 2, RATE, 0, "NONE", ""))
            file.writeframes((32767 * sound).clip(-32768, 32767).astype("<i2").tobytes())
        sounds.append(f"{number}.wav,{name}")
        own = [{"start": round(length / RATE, 4), "end": round(2 * length / RATE, 4), "label": name}]
        segments.append({"recording": f"{number}.wav", "segments": own})
        pixels = drawn.integers(0, 90, (*drawn.integers(8, 13, 2), 3))
        pixels[: len(pixels) // 2] += 150 * (number % 2)
        Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{number}.png")
        images.append(f"{number}.png,{'light' if number % 2 else 'dark'}")
    (folder / "sounds.csv").write_text("\n".join(sounds) + "\n", encoding="utf-8")
    write_rows(folder / "segments.jsonl", segments)
    (folder / "images.csv").write_text("\n".join(images) + "\n", encoding="utf-8")
    for kind, ending in (("sounds", "wav"), ("images", "png")):
        column = "recording" if ending == "wav" else "image"
        new = [column, *(f"{number}.{ending}" for number in range(4)), f"bad.{ending}", f"5.{ending}"]
        (folder / f"{kind}-new.csv").write_text("\n".join(new) + "\n", encoding="utf-8")
        (folder / f"bad.{ending}").write_text("neither", encoding="utf-8")
    write_rows(folder / "segments-new.jsonl", [{"recording": f"{name}.wav"} for name in (0, 1, "bad", 3)])


if __name__ == "__main__":
    main()
