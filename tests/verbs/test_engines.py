"""`Predictor` in the engines of the guide: each of its examples runs, and has the predictions of one process."""

import re
import shutil
from pathlib import Path

import interpreters
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from decisive_words import write_run

from longspan import predict

GUIDE = Path(__file__).parents[2] / "docs/guides/batch-prediction.md"
#: By what an example imports, what it writes.
EXAMPLES = {"ray": "labelled-in-ray", "datasets": "labelled.parquet", "pyspark": "labelled-by-spark"}


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("package", EXAMPLES)
def test_an_example_of_the_guide_predicts_each_row_once(package: str, tmp_path: Path) -> None:
    pytest.importorskip(package, reason=f"{package} is not installed: see docs/guides/batch-prediction.md")
    if package == "pyspark" and shutil.which("java") is None:
        pytest.skip("Spark needs Java: apt install default-jre-headless")
    run = write_run(tmp_path / "runs/classify", ["no", "yes"], "good", "yes", "good bad film", ["data.max_length=4"])
    # Errors in some batches alone.
    texts = [f"{'good ' * (n % 3)}film {n}" if n < 700 or n % 50 else " " for n in range(1000)]
    lines = ["text,label", *(f"{text},{number % 2}" for number, text in enumerate(texts))]
    (tmp_path / "reviews.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    examples = re.findall(r"^```python\n(.*?)^```", GUIDE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    (example,) = (example for example in examples if re.search(rf"^(from|import) {package}\b", example, re.MULTILINE))
    interpreters.printed(example, tmp_path)
    found = ds.dataset(tmp_path / EXAMPLES[package], format="parquet").to_table()
    wanted = pa.Table.from_pandas(predict(run, tmp_path / "reviews.csv").to_pandas())
    wanted = wanted.append_column("text", [texts])

    def rows(table: pa.Table) -> list[tuple[object, ...]]:
        columns = ["text", *(name for name in wanted.column_names if name not in ("where", "text"))]
        # A cell of white space is one, or none, for some readers of csv.
        kept = [{**row, "text": (row["text"] or "").strip()} for row in table.to_pylist()]
        return sorted((tuple(row[name] for name in columns) for row in kept), key=repr)

    assert rows(found) == rows(wanted)
    assert set(found["error"].to_pylist()) == {None, "no text"}
