"""Extracted summaries: what is cut, ranked and chosen, against slow forms."""

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from datasets import Dataset
from rouge_score.rouge_scorer import RougeScorer
from rouge_score.tokenizers import DefaultTokenizer

from longspan import UserError, recipes
from longspan.data.sources.formats.rows import Row
from longspan.tasks.base.baselines.retrieval import nearest, tfidf
from longspan.tasks.base.task import Run
from longspan.tasks.evidence.task import Evidence as EvidenceTask
from longspan.tasks.evidence.task import EvidencePrediction
from longspan.tasks.summarisation.baselines.bm25 import Bm25
from longspan.tasks.summarisation.baselines.constant import best_of
from longspan.tasks.summarisation.baselines.evidence import Evidence
from longspan.tasks.summarisation.baselines.lead import Lead
from longspan.tasks.summarisation.baselines.memory import Memory
from longspan.tasks.summarisation.baselines.oracle import Oracle, greedy
from longspan.tasks.summarisation.baselines.textrank import ranks
from longspan.tasks.summarisation.reading import fill, units
from longspan.verbs import fitting


def test_parts_are_whole_but_for_the_last_one_taken() -> None:
    parts = ["a b c", "d e", "f g h i"]
    assert fill(parts, [2, 0, 1], 4) == ["f g h i"]
    assert fill(parts, [2, 0, 1], 6) == ["a b", "f g h i"]
    assert fill(parts, [1], 9) == ["d e"]
    assert fill(parts, [], 9) == fill(parts, [0], 0) == []
    assert units("A: one. Two.\n\n B: three \n", "lines") == ["A: one. Two.", "B: three"]
    assert units("A: one. Two.\n\n B: three \n", "sentences") == ["A: one.", "Two.", "B: three"]


def test_lead_is_the_beginning_and_the_end() -> None:
    row = {"document": "a b\nc d\ne f\ng h", "questions": ["x", "y"], "summaries": ["s", "t"]}
    settings = [{"parts": "lines", "first": share} for share in (1.0, 0.5, 0.0)]
    assert list(Lead().summaries(row, 4, settings)) == [["a b\nc d"] * 2, ["a b\ng h"] * 2, ["e f\ng h"] * 2]
    # What is short is there once.
    assert list(Lead().summaries({**row, "questions": None}, 20, settings[1:2])) == [["a b\nc d\ne f\ng h"]]


def test_ranks_are_those_of_the_whole_matrix() -> None:
    draw = np.random.default_rng(0)
    words = [f"word{number}" for number in range(12)]
    parts = [" ".join(draw.choice(words, 4)) for _ in range(15)] + ["lonely", "the of"]
    fitted = tfidf(parts)
    assert fitted is not None
    vectors = fitted[1].toarray()
    similar = vectors @ vectors.T
    np.fill_diagonal(similar, 0)
    degrees = similar.sum(0)
    moves = np.where(degrees > 0, similar / np.where(degrees > 0, degrees, 1), 1 / len(parts))
    values, states = np.linalg.eig(0.15 / len(parts) + 0.85 * moves)
    expected = states[:, values.real.argmax()].real
    # Steps end where ranks change by less than 1e-8 together.
    assert ranks(parts) == pytest.approx(expected / expected.sum(), abs=1e-7)
    assert ranks(["the", "of"]) == pytest.approx([0.5, 0.5])
    assert len(ranks([])) == 0


class Finder(EvidenceTask):
    """Marks what is longest, whatever the question."""

    def predict(self, run: Run, rows: Iterable[Row]) -> Iterator[EvidencePrediction]:
        for row in rows:
            sizes = [len(part) for part in row.values["parts"]]
            parts = [{"part": part, "score": size / 1000} for part, size in enumerate(sizes)]
            problem = "too long" if len(parts) > 9 else None
            asked = [{"question": question, "parts": parts} for question in row.values["questions"]]
            yield EvidencePrediction(row.where, problem, None if problem else asked)


def test_the_lines_are_those_that_a_run_of_evidence_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    run: Any = SimpleNamespace(folder=Path("runs/found"), task=Finder("evidence"))
    monkeypatch.setattr(fitting, "load_run", lambda folder: run if folder == Path("runs/found") else None)
    task = recipes.load("summarisation").task
    baseline = fitting.find(task, "evidence:runs/found")
    assert isinstance(baseline, Evidence)
    assert baseline.source == str(Path("runs/found").absolute())
    parts = ["Ann: the price", "Bo: it must be red, and it must be cheap", "Bo: so it is"]
    assert baseline.scores(parts, ["", "Which?"]).argmax(1).tolist() == [0, 1]
    row = {"document": "\n".join(parts), "questions": ["Which?"], "summaries": ["s"]}
    setting = {"parts": "lines", "shortest": 1, "spread": 0.0}
    assert list(baseline.summaries(row, 12, [setting])) == [[f"Ann: the\n{parts[1]}"]]
    with pytest.raises(UserError, match="expected documents that its run can read, got one with: too long; name"):
        baseline.scores(parts * 9, ["Which?"])
    with pytest.raises(UserError, match="after a colon, got none; write, for example, evidence:runs/evidence"):
        fitting.find(task, "evidence")
    with pytest.raises(UserError, match="expected a run of the task 'evidence', got 'x' of 'summarisation'"):
        Evidence("x", SimpleNamespace(task=task))  # type: ignore[arg-type]


def test_bm25_finds_what_matches_and_otherwise_what_is_typical() -> None:
    parts = ["the menu was long", "price and colour and price", "the price rose", "a battery", "the price fell"]
    asked, typical = Bm25().scores(parts, ["What about the battery?", ""])
    assert asked.argmax() == 3
    assert typical.argmax() in (1, 2, 4)
    assert Bm25().scores(["the", "of"], [""]).tolist() == [[0, 0]]


def test_the_oracle_takes_what_raises_rouge_most() -> None:
    split = DefaultTokenizer(use_stemmer=True).tokenize
    parts = ["red dogs run", "a cat sat", "on the mat", "dogs run on grass", "nothing of it at all"]
    reference = "the cat sat on the mat while dogs run"
    tokens, sizes = [split(part) for part in parts], np.array([len(part.split()) for part in parts])
    found = greedy(tokens, sizes, split(reference), 9)
    assert sizes[found].sum() <= 9
    scorer = RougeScorer(["rouge1"], use_stemmer=True)

    def score(numbers: tuple[int, ...]) -> float:
        text = " ".join(parts[number] for number in numbers)
        return float(scorer.score(reference, text)["rouge1"].fmeasure)

    each = [numbers for size in (1, 2, 3) for numbers in itertools.combinations(range(5), size)]
    fits = [numbers for numbers in each if sizes[list(numbers)].sum() <= 9]
    # Greedy steps find the best of all sets here.
    assert tuple(sorted(found)) == max(fits, key=score)
    # Nothing is taken that does not help.
    assert greedy([split("a dog")], np.array([2]), split("cat"), 5) == []
    row = {"document": "a cat sat on it\na dog", "questions": None, "summaries": ["cat sat"]}
    assert list(Oracle().summaries(row, 3, [{"parts": "lines"}])) == [["a cat sat"]]


def test_the_nearest_text_has_the_largest_cosine() -> None:
    known = ["a cat sat", "dogs ran", "dogs ran", "雨が降る"]
    assert nearest(known, ["the dogs ran far", "cat", "nothing known"]) == [1, 0, 0]
    assert nearest(known, ["雪が降る", "dog"], characters=True) == [3, 1]


def test_a_memory_gives_the_summary_of_the_nearest_question_or_document() -> None:
    def rows(*pairs: tuple[str, list[str] | None, list[str]]) -> Dataset:
        names = ("document", "questions", "summaries")
        return Dataset.from_list([dict(zip(names, pair, strict=True)) for pair in pairs])

    train = rows(("a cat sat", None, ["feline rest"]), ("a dog ran far", None, ["canine journey north"]))
    splits = {"train": train, "validation": rows(("the dog ran", None, ["run"]))}
    assert Memory().split_summaries(splits, 2) == ({"validation": ["canine journey"]}, {})
    train = rows(("x", ["what cat?", "what dog?"], ["feline", "canine"]))
    splits = {"train": train, "test": rows(("y", ["which dog?", "which cat?"], ["", ""]))}
    assert Memory().split_summaries(splits, 2) == ({"test": ["canine", "feline"]}, {})


def test_the_constant_summary_agrees_best_with_all() -> None:
    known = ["the cat sat", "the cat ran and ran", "a dog ran", "the cat ran"]
    scorer = RougeScorer(["rouge1", "rouge2"], use_stemmer=True)
    means = [sum(found.fmeasure for text in known for found in scorer.score(text, one).values()) for one in known]
    assert best_of(known, known) == int(np.argmax(means)) == 3
    assert best_of(["dog dog", "dog"], ["dog dog dog"]) == 0
