"""Tables and the model card."""

from huggingface_hub import ModelCard

from longspan import mixers, recipes, report
from longspan.report import classification

SCORES = {"accuracy": 0.91, "macro_f1": 0.905, "calibration_error": 0.03}
ROW = {"documents": 1200, "tokens": 45000, "median_length": 30, "longest": 99, "cut_documents": 7, "removed_tokens": 80}
RESULT = {
    "validation": SCORES,
    "test": SCORES | {"accuracy": 0.89},
    "tokens_per_second": 41234.4,
    "peak_memory_bytes": 300 * 2**20,
    "parameters": 1234567,
    "seconds": 7300.0,
    "labels": ["no", "yes|maybe"],
    "data": {"train": ROW, "test": ROW, "skipped": {}},
}


def test_cells():
    assert report.count(1234567) == "1,234,567"
    assert report.count(None) == "-"
    assert report.size(2**20) == "1 MiB"
    assert report.size(1.5 * 2**30) == "1.50 GiB"
    assert report.duration(3.21) == "3.2 s"
    assert report.duration(119.6) == "2 min 0 s"
    assert report.duration(7300) == "2 h 1 min"
    assert report.spread({"mean": 0.5, "spread": 0.01}) == "0.500 ± 0.010"
    assert report.spread({"mean": 0.5, "spread": None}) == "0.500"


def test_tables_leave_class_names_alone():
    text = report.table(["class", "n"], [["1e5", "1"], ["007", "2"], ["a|b", "3"]], "github")
    assert "1e5" in text
    assert "007" in text
    assert "a\\|b" in text
    assert report.table(["class"], []) == "(nothing)"


def test_mixer_tables_and_pages():
    descriptions = [mixers.describe(name) for name in mixers.names()]
    assert all(entry.cost in report.mixer_table(descriptions) for entry in descriptions)
    narrow = report.mixer_table(descriptions, 100)
    assert max(map(len, narrow.splitlines())) <= 100
    assert "interaction" in report.mixer_page(mixers.describe("additive"))


def test_the_training_summary_tells_what_was_cut(tmp_path):
    text = report.training_summary("classification", RESULT, tmp_path)
    for part in ("1,200", "7", "80", "0.890", "41,234 tokens/s", "300 MiB", "2 h 1 min", str(tmp_path)):
        assert part in text


def test_the_model_card_is_one_the_hub_reads():
    card = ModelCard(classification.model_card(recipes.load("imdb"), RESULT))
    meta, body = card.data.to_dict(), card.text
    assert meta["library_name"] == "transformers"
    assert meta["pipeline_tag"] == "text-classification"
    assert {"longspan", "additive"} <= set(meta["tags"])
    assert meta["metrics"] == ["accuracy", "f1"]
    for part in (
        "`yes|maybe`",
        "| validation",
        "0.910",
        "0.890",
        "1,234,567",
        "only the first 1,024 tokens of each",
        "pipeline(",
    ):
        assert part in body
    assert "read whole" in classification.model_card(recipes.load("movie-reviews"), RESULT)
