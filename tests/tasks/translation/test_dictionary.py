"""The dictionary of IBM model 1 is that of the formula, and translates word by word."""

from collections import defaultdict

import pytest
from phrases import NOUNS, VERBS, phrases

from longspan.tasks.translation.baselines.dictionary import WordModel, translate

PAIRS = [("the house", "das Haus"), ("the book", "das Buch"), ("a book", "ein Buch"), ("the the big", "das groß")]


def naive(steps: int) -> dict[tuple[str, str], float]:
    """IBM model 1 as loops, with an empty source word in each sentence."""
    chances: dict[tuple[str, str], float] = defaultdict(lambda: 1.0)
    for _ in range(steps):
        counts: dict[tuple[str, str], float] = defaultdict(float)
        totals: dict[str, float] = defaultdict(float)
        for source, target in PAIRS:
            words = ["", *source.split()]
            for to_word in target.split():
                whole = sum(chances[word, to_word] for word in words)
                for word in words:
                    counts[word, to_word] += chances[word, to_word] / whole
                    totals[word] += chances[word, to_word] / whole
        chances = defaultdict(float, {pair: count / totals[pair[0]] for pair, count in counts.items()})
    return chances


@pytest.mark.parametrize("steps", [1, 2, 7])
def test_it_is_the_formula(steps: int) -> None:
    model = WordModel(*zip(*PAIRS, strict=True))
    model.fit(steps)
    sources, targets = [*model.source_words], [*model.target_words]
    places = zip(model._from.tolist(), model._to.tolist(), model.chances.tolist(), strict=True)
    found = {(sources[one], targets[other]): chance for one, other, chance in places}
    # Sums of float64 in another order.
    assert found == pytest.approx(dict(naive(steps)), rel=1e-12)


def test_steps_add_up() -> None:
    one, other = (WordModel(*zip(*PAIRS, strict=True)) for _ in range(2))
    one.fit(3)
    other.fit(1)
    other.fit(2)
    assert one.chances.tolist() == other.chances.tolist()


def test_words_of_a_language_are_found() -> None:
    model = WordModel(*zip(*phrases(200), strict=True))
    model.fit(10)
    words = model.dictionary()
    assert {word: words[word] for word in (*NOUNS, *VERBS)} == {**NOUNS, **VERBS}


def test_a_text_is_translated_word_by_word() -> None:
    words = {"a": "ein", "dog": "Hund", "runs": "läuft"}
    assert translate("A dog, 3 dogs: a DOG runs!", words) == "Ein Hund, 3 dogs: ein Hund läuft!"
    assert translate("  runs", words) == "  läuft"
    assert translate("", words) == ""
