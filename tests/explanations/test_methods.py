"""Scores of positions: against what removing them really changes, and against formulas."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn

from longspan import LongspanForSequenceClassification
from longspan.explanations.faithfulness import by_chance, faithfulness
from longspan.explanations.methods import METHODS, gradient, occlusion, removal
from longspan.explanations.question import Question

LENGTH, PADDED = 24, 28
DECISIVE = 7


def model_of(**more: object) -> LongspanForSequenceClassification:
    torch.manual_seed(0)
    settings = {"vocab_size": 20, "dim": 16, "depth": 1, "heads": 2, "feed_forward_dim": 16, "num_labels": 3, **more}
    model = LongspanForSequenceClassification(LongspanForSequenceClassification.configured(**settings))
    with torch.no_grad():
        # A token that decides, where others hardly matter.
        model.longspan.embeddings.table.weight.mul_(0.1)
        model.longspan.embeddings.table.weight[1] = 3 * torch.randn(16)
    return model.eval()


def question_of(model: LongspanForSequenceClassification) -> Question:
    ids = torch.randint(2, 20, (1, PADDED), generator=torch.Generator().manual_seed(1))
    ids[0, DECISIVE] = 1
    mask = (torch.arange(PADDED) < LENGTH).long().unsqueeze(0)
    ids = ids.masked_fill(mask == 0, 0)

    def value(logits: Tensor) -> Tensor:
        return logits[:, 1]

    return Question(model, {"input_ids": ids, "attention_mask": mask}, value, lambda x: x.softmax(1)[:, 1])


@pytest.mark.parametrize(
    "mixer", ["additive", "messages", "bounded_memory", "linear", "competitive_gate", "competitive_lookup", "softmax"]
)
def test_removal_predicts_what_deleting_each_token_changes(mixer: str) -> None:
    """Deleting is not a small change, so they need not be equal. Here all correlations are above 0.99."""
    question = question_of(model_of(mixers=[mixer], position="none", pooling="attention", depth=2))
    scores = removal(question)
    kept = torch.ones(LENGTH, PADDED, dtype=torch.bool).logical_xor(torch.eye(LENGTH, PADDED, dtype=torch.bool))
    changes = question.values(torch.ones(1, PADDED, dtype=torch.bool)) - question.values(kept)
    assert torch.corrcoef(torch.stack((scores[:LENGTH], changes)))[0, 1] > 0.99
    assert (scores[LENGTH:] == 0).all()


def test_removal_is_what_small_removals_change() -> None:
    """Of a mean, in float32: counts of 0.99 in the formula of the model, position by position."""
    model = model_of(mixers=["additive"], position="none", pooling="attention")
    question, tiny = question_of(model), 1e-2
    scores = removal(question)
    with torch.no_grad():
        whole = question.value(question.logits())
        for at in (0, DECISIVE, LENGTH - 1):
            counts = torch.ones(1, PADDED)
            counts[0, at] -= tiny
            changed = (whole - question.value(question.counted(counts))) / tiny
            # Second-order terms are as large as the step.
            torch.testing.assert_close(changed[0], scores[at], rtol=3e-2, atol=2e-3)


def test_of_a_mean_of_embeddings_all_methods_are_formulas() -> None:
    model = model_of(mixers=["additive"], depth=0, position="none", pooling="mean", norm="none")
    question = question_of(model)
    ids = question.batch["input_ids"][0, :LENGTH]
    weight = model.classifier.weight[1].detach()
    each = model.longspan.embeddings.table.weight.detach()[ids] @ weight
    torch.testing.assert_close(gradient(question)[:LENGTH], each / LENGTH)
    torch.testing.assert_close(removal(question)[:LENGTH], (each - each.mean()) / LENGTH)
    at = occlusion(question)
    window = [place for place in range(LENGTH) if at[place] == at[DECISIVE]]
    without = [place for place in range(LENGTH) if place not in window]
    torch.testing.assert_close(at[DECISIVE], (each.mean() - each[without].mean()) / len(window))


def test_scores_change_no_model() -> None:
    model = model_of(mixers=["additive"])
    question = question_of(model)
    for method in METHODS.values():
        method(question)
    assert all(weight.grad is None and weight.requires_grad for weight in model.parameters())
    assert not model.longspan.embeddings._forward_hooks


def test_good_scores_are_faithful_and_bad_ones_are_not() -> None:
    question = question_of(model_of(mixers=["additive"], position="none"))
    good, bad = faithfulness(question, removal(question)), faithfulness(question, -removal(question))
    chance = by_chance(question)
    signs = question.share(question.logits()).sign()
    assert signs == 1
    assert good.comprehensiveness > max(chance.comprehensiveness, bad.comprehensiveness)
    assert good.sufficiency < bad.sufficiency
    assert by_chance(question) == chance


@pytest.mark.slow
def test_threads_that_explain_and_read_at_once_do_not_meet_in_the_model() -> None:
    model = model_of(mixers=["additive", "softmax"], position="none", depth=2)
    texts = torch.randint(1, 20, (40, 1, PADDED), generator=torch.Generator().manual_seed(2))

    def found(number: int) -> Tensor:
        ids = texts[number]
        batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        question = Question(model, batch, lambda logits: logits[:, 1], lambda x: x.softmax(1)[:, 1])
        scores = [METHODS[name](question) for name in ("weight", "gradient", "removal")]
        with torch.no_grad():
            return torch.cat((*scores, model(**batch).logits[0]))

    expected = [found(number) for number in range(len(texts))]
    with ThreadPoolExecutor(8) as threads:
        for one, other in zip(threads.map(found, range(len(texts))), expected, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=0)
    assert all(isinstance(weight, nn.Parameter) and weight.requires_grad for weight in model.parameters())
