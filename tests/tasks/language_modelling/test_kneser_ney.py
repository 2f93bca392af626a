"""Kneser-Ney counts in tables, against the formula written out with dictionaries."""

from collections import Counter, defaultdict

import numpy as np
import pytest
import torch

from longspan import recipes
from longspan.data.text.processor import tokenizer_of
from longspan.errors import UserError
from longspan.tasks.language_modelling import counting
from longspan.tasks.language_modelling.counting import HIGHEST, Counts, losses
from longspan.verbs import fitting

END, VOCABULARY = 2, 9


def written_out(documents, order):
    """Return p(w, history) of the model of this order, from the definition."""
    rows = [(END, *document, END) for document in documents]
    grams = {k: Counter(r[i - k + 1 : i + 1] for r in rows for i in range(max(1, k - 1), len(r))) for k in range(1, 9)}
    starts = {k: {row[:k] for row in rows} for k in range(2, 9)}

    def counts(k, highest):
        if highest:
            return grams[k]
        before = defaultdict(set)
        for gram in grams[k + 1]:
            before[gram[1:]].add(gram[0])
        return {g: grams[k][g] if k > 1 and g in starts[k] else len(before[g]) for g in grams[k]}

    tables = {k: counts(k, k == order) for k in range(1, order + 1)}

    def discount(k, count):
        if not count:
            return 0.0
        n = Counter(tables[k].values())
        usual = {1: 0.5, 2: 1.0, 3: 1.5}[min(count, 3)]
        i = min(count, 3)
        if not n[1] or not n[2] or not (n[i] if i < 3 else sum(v for c, v in n.items() if c >= 3)):
            return usual
        y = n[1] / (n[1] + 2 * n[2])
        if not n[i]:
            return usual
        found = i - (i + 1) * y * n[i + 1] / n[i]
        return found if 0 < found < i else usual

    def probability(w, history, k):
        if k == 0:
            return 1 / VOCABULARY
        below = probability(w, history, k - 1)
        h = tuple(history[len(history) - k + 1 :]) if k > 1 else ()
        if len(history) < k - 1:
            return below
        followers = {g: c for g, c in tables[k].items() if g[:-1] == h}
        total = sum(followers.values())
        if not total:
            return below
        kept = max(tables[k].get((*h, w), 0) - discount(k, tables[k].get((*h, w), 0)), 0)
        return (kept + sum(discount(k, c) for c in followers.values()) * below) / total

    return lambda w, history: probability(w, (END, *history), order)


def documents(seed=0):
    rng = np.random.default_rng(seed)
    # Skewed, so that counts of 1, 2, 3 and more occur at every order; and one empty, one short document.
    return [rng.choice(np.arange(3, 8), size, p=[0.5, 0.2, 0.15, 0.1, 0.05]) for size in (60, 0, 1, 25, 40)]


@pytest.mark.parametrize("order", [1, 2, 3, 5])
def test_it_is_the_formula(order):
    training, held_out = documents(), documents(seed=1)
    model = Counts(training, end=END, vocab_size=VOCABULARY).model(order)
    found = losses(model, held_out, np.array([len(document) + 1 for document in held_out]), END)
    reference = written_out([tuple(document.tolist()) for document in training], order)
    rows = [[*document.tolist(), END] for document in held_out]
    wanted = [-np.log(reference(row[i], row[:i])) for row in rows for i in range(len(row))]
    # Tables and sums in float32.
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


@pytest.mark.parametrize("most", [None, 12])
@pytest.mark.parametrize("training", [documents(), documents()[1:3], [np.array([3, 3, 3])]])
def test_probabilities_add_up_to_one(training, most):
    counts = Counts(training, end=END, vocab_size=VOCABULARY)
    ids = torch.tensor([END, 3, 3, 4, 3, 5, 8, 3, 3, 8, 8, 8])
    for order in range(1, 7):
        model = counts.model(order, most)
        contexts = model.contexts(ids[None])[0]
        each = torch.stack([model.probabilities(contexts, torch.full((12,), token)) for token in range(VOCABULARY)], 1)
        assert each.min() > 0
        torch.testing.assert_close(each.sum(1), torch.ones(12))
        # One sum is over tables, the other over tokens.
        torch.testing.assert_close(model.distributions(contexts), each)


def test_n_grams_are_counted_once_however_often_asked():
    counts = Counts([np.array([3, 4, 3, 4])], end=END, vocab_size=VOCABULARY)
    # [end 3] [3 4] [4 3] [4 end]; [end 3 4] [3 4 3] [4 3 4] [3 4 end]
    assert [counts.model(order).sizes for order in (2, 1, 3)] == [(4,), (), (4, 4)]


def test_rare_n_grams_are_left_out_first():
    training = documents()
    counts = Counts(training, end=END, vocab_size=VOCABULARY)
    whole, small = counts.model(4), counts.model(4, 30)
    assert sum(small.sizes) <= 30 < sum(whole.sizes)
    scored = np.array([len(document) + 1 for document in training])
    assert losses(whole, training, scored, END).mean() < losses(small, training, scored, END).mean()


def test_contexts_of_part_of_a_row_are_those_of_the_whole():
    model = Counts(documents(), end=END, vocab_size=VOCABULARY).model(4)
    ids = torch.tensor([[END, *documents()[0][:9].tolist()]])
    whole = model.contexts(ids)
    for start in (3, 5):
        torch.testing.assert_close(
            model.contexts(ids[:, start - model.before + 1 :])[:, model.before - 1 :], whole[:, start:]
        )


def recipe_of_text(tmp_path, *overrides):
    text = "the cat sat on the mat. the dog sat on the log. " * 30
    (tmp_path / "text.txt").write_text(text)
    given = [f"data.path={tmp_path / 'text.txt'}", "data.tokens=characters", "model.depth=1", *overrides]
    return fitting.recipe_of(recipes.load("shakespeare", given))


def test_the_baseline_scores_what_runs_score(tmp_path):
    recipe = recipe_of_text(tmp_path, "data.test_fraction=0.2", "training.max_eval_tokens=100")
    found = recipe.task.baselines()["ngram"]().fit(recipe)
    assert set(found.scores) == {"validation", "test"}
    assert 2 <= found.chosen["order"] <= HIGHEST
    # Nearly everything in it repeats.
    assert found.scores["test"].loss < 0.3
    assert found.scores["test"].perplexity == pytest.approx(np.exp(found.scores["test"].loss))
    prepared = recipe.task.prepare(recipe)
    (training,), (validation,) = (prepared.splits[name]["input_ids"][:] for name in ("train", "validation"))
    end, size = tokenizer_of(prepared.processor).eos_token_id, len(tokenizer_of(prepared.processor))
    model = Counts([np.array(training)], end=end, vocab_size=size).model(found.chosen["order"])
    expected = losses(model, [np.array(validation)], np.array([100]), end).mean()
    assert found.scores["validation"].loss == pytest.approx(expected, rel=1e-6)


def test_without_a_validation_split_there_is_no_order_to_choose(tmp_path):
    recipe = recipe_of_text(tmp_path, "data.validation_fraction=0.0")
    with pytest.raises(UserError, match="expected a validation split, got none"):
        recipe.task.baselines()["ngram"]().fit(recipe)


def test_texts_too_large_for_memory_are_refused(monkeypatch):
    monkeypatch.setattr(counting, "memory_limit", lambda: 2**30)
    counting.check_memory(1_000_000)
    with pytest.raises(UserError, match=r"in 1 GiB of memory, got 100,000,000 tokens.*set model.wide=false"):
        counting.check_memory(100_000_000)
