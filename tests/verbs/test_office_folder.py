"""A folder of office documents through every verb: trained on, scored, predicted and explained."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
from office_files import KINDS, pdf, word, write_office

import longspan
from longspan import cli
from longspan.verbs.trained import TrainedRun

SENTENCES = {
    "bills": "The invoice is due in {} days. Please pay the amount of our bill to this account.",
    "talks": "The chair opened meeting {}. The committee agreed on the agenda and the minutes.",
}
UNREADABLE = {"bills/scan.pdf": "scanned PDF without text", "talks/locked.pdf": "password"}


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files") / "office"
    write_office(folder, {f"{name}/{n}": text.format(n) for name, text in SENTENCES.items() for n in range(20)})
    (folder / "bills" / "~$1.docx").write_bytes(b"\x05Ann")
    (folder / "bills" / "scan.pdf").write_bytes(pdf(""))
    (folder / "talks" / "locked.pdf").write_bytes(pdf("secret", password="x"))
    return folder


@pytest.fixture(scope="module")
def run(office: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainedRun:
    folder = tmp_path_factory.mktemp("runs") / "office"
    settings = {"dim": 8, "heads": 2, "depth": 1, "num_train_epochs": 2, "vocab_size": 300, "min_steps": 0}
    longspan.train("classify", data=office, run=folder, skip_bad_rows=True, max_minutes=0, progress=False, **settings)
    return longspan.load(folder)


@pytest.mark.slow
def test_every_kind_is_learned_and_scored(run: TrainedRun, office: Path) -> None:
    metrics = json.loads((Path(run.folder) / "metrics.json").read_text(encoding="utf-8"))
    assert metrics["data"]["skipped"] == {"scanned PDF without text": 1, "password": 1}
    assert np.sum(run.evaluate(office).scores.confusion) == 40


@pytest.mark.slow
def test_every_file_has_a_prediction_or_its_reason(run: TrainedRun, office: Path) -> None:
    found = {prediction.where: prediction for prediction in longspan.predict(run, office)}
    assert len(found) == 42
    assert {where: one.error for where, one in found.items() if one.error} == UNREADABLE
    wrong = [where for where, one in found.items() if not one.error and one.label != where.partition("/")[0]]
    assert not wrong


@pytest.mark.slow
@pytest.mark.parametrize("suffix", KINDS)
def test_each_kind_says_the_same_from_everywhere(
    run: TrainedRun, suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / f"new{suffix.upper()}"
    path.write_bytes(KINDS[suffix](SENTENCES["talks"].format(99)))
    expected = next(longspan.predict(run, path))
    assert (expected.label, expected.error) == ("talks", None)
    # Nothing but its name tells mail from other texts.
    same: list[Path | bytes] = [path] if suffix == ".eml" else [path, path.read_bytes()]
    assert [one.to_dict()["probabilities"] for one in run.predict(same)] == [expected.to_dict()["probabilities"]] * len(
        same
    )
    assert run.explain(path).extracted_from == suffix
    page = longspan.explain(run, path)
    assert page.extracted_from == suffix
    assert "The committee agreed" in page.text
    assert f"The text below was extracted from the {suffix} file." in page.page()
    assert cli.main(["explain", str(run.folder), str(path)]) == 0
    assert f"of the text extracted from the {suffix} file" in capsys.readouterr().out
    if suffix != ".eml":
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(path.read_bytes())))
        assert cli.main(["predict", str(run.folder), "-"]) == 0
        assert '"label": "talks"' in capsys.readouterr().out


@pytest.mark.slow
def test_a_table_of_paths_is_trained_on_and_predicted_from(office: Path, tmp_path: Path) -> None:
    lines = [f"office/{name}/{n}{list(KINDS)[n % 10]},{name}" for name in SENTENCES for n in range(20)]
    table = office.parent / "table.csv"
    table.write_text("path,label\n" + "\n".join(lines) + "\n")
    settings = {"dim": 8, "heads": 2, "depth": 1, "num_train_epochs": 1, "vocab_size": 300, "min_steps": 0}
    found = longspan.train("classify", data=table, file_column="path", run=tmp_path / "run", progress=False, **settings)
    rows = list(longspan.predict(tmp_path / "run", table))
    assert [row.error for row in rows] == [None] * 40
    assert np.sum(found.scores["validation"].confusion) == 4


@pytest.mark.slow
def test_an_encrypted_letter_to_be_explained_is_one_sentence(
    run: TrainedRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.pdf").write_bytes(pdf("x", password="y"))
    (tmp_path / "b.docx").write_bytes(word("x")[:-100])
    for name, reason in (("a.pdf", "password"), ("b.docx", "damaged (File is not a zip file)")):
        assert cli.main(["explain", str(run.folder), str(tmp_path / name)]) == 2
        assert f"{name}: expected a document to explain, got {reason}; choose" in capsys.readouterr().err
