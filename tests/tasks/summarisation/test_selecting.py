"""Documents of which the words are selected that match the question best."""

import json
from pathlib import Path

import pytest
import target_tasks
from chats import FILLER, chat

from longspan import UserError, evaluate, train
from longspan.tasks.summarisation.options import SummaryData
from longspan.tasks.summarisation.reading import SummaryProcessor, selected
from longspan.tasks.summarisation.scores import SummaryScores
from longspan.verbs.trained import load


def line(number: int) -> str:
    return f"A: {FILLER[number % len(FILLER)]} and so on {number}"


LINES = [line(number) for number in range(200)]
LINES[120] = "B: the budget must be cheap"


def test_passages_that_match_the_question_are_read_in_their_order() -> None:
    document = "\n".join(LINES)
    found = selected(document, "What about the budget?", 60).split("\n")
    # What matches, with its neighbours in a document in which nothing else does.
    assert LINES[120] in found
    places = [LINES.index(one) for one in found[1:-1]]
    assert places == list(range(places[0], places[0] + len(places)))
    assert abs(places[0] - 116) <= 1
    assert sum(len(one.split()) for one in found) == 60
    # Without a question, and where none of its words occurs, the ends are read.
    for question in ("", "What about the weather?"):
        ends = selected(document, question, 48).split("\n")
        assert ends == [*LINES[:4], *LINES[-4:]]
    assert selected(document, "What about the budget?", 0) is document
    assert selected(document, "What about the budget?", 6 * 200) is document


def test_a_document_of_one_line_is_read_in_sentences() -> None:
    sentences = [f"Number {number} is here." for number in range(50)]
    sentences[30] = "The budget is low."
    found = selected(" ".join(sentences), "Which budget?", 12)
    assert "The budget is low." in found
    assert "\n" not in found
    assert selected("word " * 50, "word?", 7) == " ".join(["word"] * 7)


def test_it_is_one_sentence_where_a_package_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"data.select_words needs the package 'bm25s'.*longspan.baselines"):
        SummaryProcessor.check({}, SummaryData(select_words=9))
    SummaryProcessor.check({}, SummaryData())
    with pytest.raises(UserError, match="select_words must be at least 0, got -1"):
        SummaryData(select_words=-1)


@pytest.mark.slow
def test_training_evaluation_and_prediction_read_the_same(tmp_path: Path) -> None:
    rows = [chat(seed, topics=4) for seed in range(6)]
    (tmp_path / "chats.jsonl").write_text("\n".join(map(json.dumps, rows)))
    made = target_tasks.recipe("summarisation", tmp_path / "chats.jsonl", "training.beams=1", "data.select_words=20")
    result = train(made, run=tmp_path / "run", progress=False)
    scores = result.scores["validation"]
    assert isinstance(scores, SummaryScores)
    # 16 turns of 6 words.
    assert 0.15 < scores.source_read < 0.4
    assert result.data["train"]["cut_sources"] == result.data["train"]["pairs"]
    found = evaluate(tmp_path / "run", split="validation", max_new_tokens=4).scores
    assert isinstance(found, SummaryScores)
    assert (found.loss, found.source_read) == pytest.approx((scores.loss, scores.source_read), rel=1e-5)
    document = "\n".join(LINES)
    run = load(tmp_path / "run")
    (one,) = run.predict([{"document": document, "question": "What about the budget?"}], max_new_tokens=4)
    reader = SummaryProcessor.from_pretrained(tmp_path / "run")
    assert isinstance(reader, SummaryProcessor)
    read, lost = reader.source(document, "What about the budget?", made.data)
    assert (one.tokens_read, one.tokens_total) == (len(read), len(read) + lost)
    (short,) = run.predict([{"document": LINES[120], "question": "What about the budget?"}], max_new_tokens=4)
    assert short.tokens_read is None
    assert "at most 20 words of a document" in (tmp_path / "run" / "README.md").read_text()
