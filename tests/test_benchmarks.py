"""The benchmark scripts still run; what they measure is for RESULTS.md, not for tests."""

import json
import re
import runpy
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from decisive_words import write_run


@pytest.mark.slow
def test_training_speed(tmp_path: Path, capsys: pytest.CaptureFixture[str], run_benchmark: Callable[..., None]) -> None:
    run_benchmark("training_speed.py", "--steps", "1", "--mixers", "additive", "--json", str(tmp_path / "speed.json"))
    assert "tokens/s" in capsys.readouterr().out
    written = json.loads((tmp_path / "speed.json").read_text())
    assert written["result"]["additive"]["tokens_per_second"] > 0
    assert written["environment"]["cores"]


@pytest.mark.slow
def test_language_step(tmp_path: Path, capsys: pytest.CaptureFixture[str], run_benchmark: Callable[..., None]) -> None:
    small = ["--dim", "16", "--depth", "1", "--heads", "2", "--vocabulary", "50", "--steps", "1", "--device", "cpu"]
    small += ["--mixers", "additive,softmax", "--shapes", "2x16,1x32", "--json", str(tmp_path / "steps.json")]
    run_benchmark("language_step.py", *small)
    assert capsys.readouterr().out.count(" of products, ") == 4
    found = json.loads((tmp_path / "steps.json").read_text())["result"]
    assert all(row["tokens_per_second"] > 0 for shape in found["shapes"].values() for row in shape.values())


@pytest.mark.skipif(shutil.which("chromium") is None, reason="Chromium is not installed; .ci/browser installs it.")
def test_explanation_page(capsys: pytest.CaptureFixture[str], run_benchmark: Callable[..., None]) -> None:
    run_benchmark("explanation_page.py", "--tokens", "300", "--rows", "2")
    assert "first paint" in capsys.readouterr().out


def test_document_memory(capsys: pytest.CaptureFixture[str], run_benchmark: Callable[..., None]) -> None:
    run_benchmark("document_memory.py", "--tokens", "300", "--checkpointing")
    assert "300 tokens" in capsys.readouterr().out


@pytest.mark.parametrize("work", ["train", "generate"])
def test_source_memory(work: str, capsys: pytest.CaptureFixture[str], run_benchmark: Callable[..., None]) -> None:
    run_benchmark("source_memory.py", work, "--source", "300", "--target", "6", "--dim", "16", "--copy")
    said = capsys.readouterr().out
    assert said.startswith(f"{work}, additive, softmax, copying, 300 + 6 tokens: peak ")
    assert ("times the first" in said) == (work == "generate")


def test_pooling_speed(capsys: pytest.CaptureFixture[str], run_benchmark: Callable[..., None]) -> None:
    run_benchmark("pooling_speed.py", "--short", "64", "--long", "256", "--repeats", "1", "--mixers", "messages,linear")
    assert "messages, causal" in capsys.readouterr().out


@pytest.mark.slow
def test_cross_attention(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], run_benchmark: Callable[..., None]
) -> None:
    tiny = "--only none,softmax,bounded_memory:slots=2 --lengths 3,9 --dim 16 --batch 2 --minutes 0.002"
    written = tmp_path / "rows.jsonl"
    run_benchmark("cross_attention.py", *tiny.split(), "--out", str(written))
    assert "| bounded_memory:slots=2 |" in capsys.readouterr().out
    rows = [json.loads(line) for line in written.read_text().splitlines()]
    assert [row["name"] for row in rows] == ["none", "softmax", "bounded_memory:slots=2"]
    assert all(row["steps"] > 0 and 0 <= row["accuracy"] <= 1 and set(row) >= {"3-4", "5-7", "8-9"} for row in rows)


def test_sentences_to_translate() -> None:
    """Phrases reversed, token by token through one dictionary; other seeds give other sentences."""
    sentences = runpy.run_path(str(Path(__file__).parent.parent / "benchmarks" / "cross_attention.py"))["sentences"]
    source, target = sentences(50, 3, 20, 1)
    assert not source.equal(sentences(50, 3, 20, 2)[0])
    known: dict[int, int] = {}
    for read, written in zip(source.tolist(), target.tolist(), strict=True):
        words = [word for word in read if word]
        assert written[0] == 1
        assert written[len(words) + 1 :] == [2] + [0] * (20 - len(words))
        phrases: list[list[int]] = []
        for word in words:
            # Heads have the first eight numbers.
            phrases = [*phrases, [word]] if word < 11 else [*phrases[:-1], [*phrases[-1], word]]
        back = [word for phrase in phrases for word in reversed(phrase)]
        assert all(known.setdefault(word, told) == told for word, told in zip(back, written[1:], strict=False))
    assert len({*known.values()}) == len(known)


def test_local_speed(capsys: pytest.CaptureFixture[str], run_benchmark: Callable[..., None]) -> None:
    pytest.importorskip("local_attention")
    run_benchmark("local_speed.py", "--radius", "16", "--lengths", "128", "--full", "128", "--repeats", "1")
    assert "LocalAttention" in capsys.readouterr().out


def test_relative_speed(capsys: pytest.CaptureFixture[str], run_benchmark: Callable[..., None]) -> None:
    run_benchmark("relative_speed.py", "--shapes", "2x5x7,1x150x0", "--repeats", "1")
    assert "faster than published" in capsys.readouterr().out


@pytest.mark.slow
def test_scan_speed(tmp_path: Path, run_benchmark: Callable[..., None]) -> None:
    written = tmp_path / "speed.json"
    run_benchmark("scan_speed.py", "--positions", "64", "--repeats", "1", "--json", str(written))
    assert json.loads(written.read_text())["result"]["lerp_scan forward"] > 0


def test_vocabulary_speed(tmp_path: Path, run_benchmark: Callable[..., None]) -> None:
    written, tiny = tmp_path / "speed.json", "--sizes 500,2500 --rows 2 --length 4 --repeats 1"
    run_benchmark("vocabulary_speed.py", *tiny.split(), "--json", str(written))
    kinds = [(row["vocabulary"], row["softmax"]) for row in json.loads(written.read_text())["result"]]
    assert kinds == [(500, "plain"), (500, "factored"), (2500, "plain"), (2500, "factored"), (2500, "adaptive")]


def test_segment_memory(capsys: pytest.CaptureFixture[str], run_benchmark: Callable[..., None]) -> None:
    tiny = "--marks 2,3 --rows 2 --segment 8 --dim 16 --heads 2"
    run_benchmark("segment_memory.py", *tiny.split(), "--mixers", "softmax carried")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[2] for line in lines[2:]] == ["2", "3"]


def test_encoder_epochs(tmp_path: Path, capsys: pytest.CaptureFixture[str], run_benchmark: Callable[..., None]) -> None:
    for label in ("one", "two"):
        (tmp_path / "data" / label).mkdir(parents=True)
        for number in range(10):
            (tmp_path / "data" / label / f"{number}.txt").write_text(f"document {number} of class {label} " * 3)
    run_benchmark("encoder_epochs.py", str(tmp_path / "data"), "--documents", "20", "--repeats", "1")
    assert "times faster" in capsys.readouterr().out


def test_recommendation_speed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], run_benchmark: Callable[..., None]
) -> None:
    tiny = "--histories 3 --batch 2 --words 4 --items 20 --vocabulary 30 --repeats 1 --models longspan"
    written = tmp_path / "speed.json"
    run_benchmark("recommendation_speed.py", *tiny.split(), "--catalogues", "", "--json", str(written))
    assert "times NRMS" in capsys.readouterr().out
    rows = json.loads(written.read_text())["speed"]["3"]
    assert rows["NRMS as published, PyTorch"]["times_training"] == 1
    # Ours read what several impressions share once.
    assert all(row["titles"] <= 8 and row["users_per_second"] > 0 for row in rows.values())


@pytest.mark.slow
def test_recommendation_seeds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], run_benchmark: Callable[..., None]
) -> None:
    for split, rows in (("train", 8), ("test", 4)):
        log = [f"u{user},news {user} {row},{row % 2}" for user in range(4) for row in range(rows)]
        (tmp_path / f"{split}.csv").write_text("\n".join(["user,title,clicked", *log]) + "\n")
    given = [f"data.path={tmp_path}", "data.validation_fraction=0.5", "model.dim=8", "model.heads=2"]
    given.append("training.num_train_epochs=1")
    counts = ["--seeds", "1", "--draws", "20"]
    written = tmp_path / "scores.json"
    run_benchmark("recommendation_seeds.py", *counts, "--out", str(tmp_path / "runs"), "--json", str(written), *given)
    assert "difference" in capsys.readouterr().out
    result = json.loads(written.read_text())["result"]
    low, high = result["longspan"]["interval"]
    assert low <= result["longspan"]["pooled_auc"] <= high
    assert result["longspan"]["runs"] == [result["longspan"]["pooled_auc"]]


def test_summaries(tmp_path: Path, capsys: pytest.CaptureFixture[str], run_benchmark: Callable[..., None]) -> None:
    texts = [f"thing {number} is red" for number in range(9)]
    rows = [json.dumps({"document": f"first line .\n{text} .", "summary": text}) for text in texts]
    (tmp_path / "data.jsonl").write_text("\n".join(rows))
    summaries = tmp_path / "run" / "evaluation" / "summaries.txt"
    summaries.parent.mkdir(parents=True)
    summaries.write_text("\nthing 1 is red\n")
    written = tmp_path / "scores.json"
    given = [f"data.path={tmp_path}/data.jsonl", "data.validation_fraction=0.2", "data.test_fraction=0.2"]
    given += ["--baselines", "lead,oracle", "--against", "lead"]
    run_benchmark("summaries.py", *given, "--runs", str(tmp_path / "run"), "--json", str(written))
    assert "Better than lead by" in capsys.readouterr().out
    result = json.loads(written.read_text())["result"]
    assert result["oracle"]["rouge"][0] == 100
    assert all(low <= high for low, high in result["oracle"]["gain"])
    assert "gain" not in result["lead"]


def test_spoken_digits(tmp_path: Path, run_benchmark: Callable[..., None]) -> None:
    for name in (f"{digit}_{speaker}_{index}.wav" for digit in (0, 1) for speaker in "ab" for index in range(120)):
        (tmp_path / name).touch()
    run_benchmark("spoken_digits.py", str(tmp_path), str(tmp_path / "tables"))
    sizes = {
        path.stem: len(path.read_text(encoding="utf-8").splitlines()) - 1
        for path in (tmp_path / "tables").glob("*.csv")
    }
    official = {"official_test": 20, "official_validation": 180, "official_train": 280}
    left_out = {"without_a_test": 240, "without_b_validation": 150, "a_to_b_train": 140, "b_to_a_test": 240}
    assert sizes.items() >= (official | left_out | {"two_train": 190, "two_validation": 50, "two_test": 240}).items()


def test_node_graphs(tmp_path: Path, run_benchmark: Callable[..., None]) -> None:
    run_benchmark("node_graphs.py", str(tmp_path))
    for name, nodes, labelled in (("web", 183, 87), ("weak", 2700, 819), ("pages", 2277, 1092)):
        with np.load(tmp_path / f"{name}.npz") as graph:
            assert (graph["shape"][0], len(graph["train"])) == (nodes, labelled)
            split = np.concatenate([graph[part] for part in ("train", "valid", "test")])
            np.testing.assert_array_equal(np.sort(split), np.arange(nodes))
            assert graph["edges"].max() < nodes


def test_digit_pictures(tmp_path: Path, run_benchmark: Callable[..., None]) -> None:
    run_benchmark("digit_pictures.py", str(tmp_path), "--count", "20")
    assert {name: len([*(tmp_path / name).glob("[0-9]/*.png")]) for name in ("train", "validation", "test")} == {
        "train": 20,
        "validation": 2,
        "test": 4,
    }


def test_passages_and_stars(tmp_path: Path, run_benchmark: Callable[..., None]) -> None:
    (tmp_path / "books").mkdir()
    for name in "abcde":
        sentences = (
            f"This is sentence {number} of book {name}, which has enough characters." for number in range(4000)
        )
        (tmp_path / "books" / f"{name}.md").write_text("\n".join(sentences), encoding="utf-8")
    for place in ("train/pos/1_9.txt", "train/neg/1_2.txt", "test/neg/1_1.txt"):
        (tmp_path / place).parent.mkdir(parents=True)
        (tmp_path / place).write_text("A film.", encoding="utf-8")
    run_benchmark("passages_and_stars.py", str(tmp_path / "books"), str(tmp_path), str(tmp_path / "tables"))
    tables = {path.stem: path.read_text(encoding="utf-8").splitlines() for path in (tmp_path / "tables").iterdir()}
    sizes = {"passages_train": 810, "passages_validation": 90, "passages_test": 1500}
    assert {name: len(rows) for name, rows in tables.items() if "passages" in name} == sizes
    assert sorted(json.loads(row)["label"] for row in tables["stars_train"]) == [2, 9]
    assert not any("pairs" in name for name in tables)
    row = json.loads(tables["passages_test"][0])
    assert {f"b{'abcde'.index(name)}" for name in "abcde" if f"book {name}," in row["text"]} == set(row["labels"])


def test_pairs_of_excerpts(tmp_path: Path, run_benchmark: Callable[..., None]) -> None:
    (tmp_path / "books").mkdir()
    for book in range(40):
        text = f"This sentence of book b{book} has enough characters, and the next one too. " * 3500
        (tmp_path / "books" / f"{book:02}.md").write_text(text, encoding="utf-8")
    (tmp_path / "train").mkdir()
    run_benchmark("passages_and_stars.py", str(tmp_path / "books"), str(tmp_path), str(tmp_path / "tables"))
    books: dict[str, set[str]] = {}
    for split, count in (("train", 1800), ("validation", 200), ("test", 2000)):
        lines = (tmp_path / "tables" / f"pairs_{split}.jsonl").read_text(encoding="utf-8").splitlines()
        assert len(lines) == count
        books[split] = set()
        for row in map(json.loads, lines):
            first, second = (
                next(word for word in row[name].split() if re.match(r"b\d", word)) for name in row if name != "label"
            )
            assert (first == second) == (row["label"] == "same book")
            books[split] |= {first, second}
    assert not books["train"] & books["validation"] | books["test"] & (books["train"] | books["validation"])


def test_cifar(tmp_path: Path, run_benchmark: Callable[..., None]) -> None:
    for folder in (tmp_path / "cifar" / split / kind for split in ("train", "test") for kind in ("cat", "ship")):
        folder.mkdir(parents=True)
        for number in range(20):
            (folder / f"{number:04}.jpg").touch()
        (folder / "notes.txt").touch()
    run_benchmark("cifar.py", str(tmp_path / "cifar"), str(tmp_path / "tables"))
    tables = {path.stem: path.read_text(encoding="utf-8").splitlines()[1:] for path in (tmp_path / "tables").iterdir()}
    assert {name: len(rows) for name, rows in tables.items()} == {"train": 36, "validation": 4, "test": 40}
    held_out = [Path(row.split(",")[0]).name for row in tables["validation"] if row.endswith(",ship")]
    assert held_out == ["0018.jpg", "0019.jpg"]
    assert not {*tables["train"]} & {*tables["validation"], *tables["test"]}
    run_benchmark("cifar.py", str(tmp_path / "cifar"), str(tmp_path / "drawn"), "--draw", "7")
    rows = (tmp_path / "drawn" / "train.csv").read_text(encoding="utf-8").splitlines()[1:]
    assert len({*rows}) == 7
    assert {row.rpartition(",")[2] for row in rows} == {"cat", "ship"}


def test_meeting_texts(tmp_path: Path, run_benchmark: Callable[..., None]) -> None:
    for split, book in (("train", "train"), ("val", "valid"), ("test", "test")):
        turns = [{"speaker": "A", "content": f"Hello {split} ."}, {"speaker": "B", "content": "Hm ."}]
        (tmp_path / "meetings" / split).mkdir(parents=True)
        (tmp_path / "meetings" / split / "one.json").write_text(json.dumps({"meeting_transcripts": turns}))
        (tmp_path / "books" / book / "Poe").mkdir(parents=True)
        (tmp_path / "books" / book / "Poe" / "The Raven.md").write_text("Once")
    run_benchmark("meeting_texts.py", *(str(tmp_path / name) for name in ("meetings", "books", "texts")))
    assert (tmp_path / "texts" / "valid" / "m_one.txt").read_text() == "A: Hello val .\nB: Hm ."
    names = sorted(str(path.relative_to(tmp_path / "texts")) for path in (tmp_path / "texts").glob("*/*"))
    assert names == [f"{split}/{name}.txt" for split in ("train", "valid") for name in ("b_The_Raven", "m_one")]


def test_explanation_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], run_benchmark: Callable[..., None]
) -> None:
    run = write_run(tmp_path / "run", ["no", "yes"], "good", "yes", "good bad film was a the")
    films = tmp_path / "films.csv"
    films.write_text("text\n" + "the film was good\n" * 20, encoding="utf-8")
    run_benchmark("explanation_time.py", str(run), str(films), "--tokens", "40", "--repeat", "1")
    found = dict(line.rsplit(maxsplit=1) for line in capsys.readouterr().out.splitlines() if "tokens" in line)
    assert float(found["tokens"]) == 40


def test_sections_of_programs() -> None:
    """Words are those of Python's parser: decorators belong to their class or function, and inner functions to it."""
    script = runpy.run_path(str(Path(__file__).parent.parent / "benchmarks" / "sections.py"))
    source = '"""A b."""\n@c\ndef f(x):\n    def g(): pass\n\n@d\nclass A:\n    def h(self): pass\ny = 1\n'
    found = script["sections"](source)
    joined = dict.fromkeys(found["labels"], "")
    for word, label in zip(found["tokens"], found["labels"], strict=True):
        joined[label] += word
    assert joined == {
        "module": '"""Ab."""y=1', "function": "@cdeff(x):defg():pass", "class": "@dclassA:defh(self):pass"
    }  # fmt: skip
    assert script["since_start"](["a", "a", "b", "a", "a", "a"]).tolist() == [0, 1, 0, 0, 1, 2]


def test_replace_attention(capsys: pytest.CaptureFixture[str], run_benchmark: Callable[..., None]) -> None:
    run_benchmark("replace_attention.py", "--steps", "1", "--tuning", "1", "--mixers", "linear")
    assert "kept: query, key, value, output" in capsys.readouterr().out
