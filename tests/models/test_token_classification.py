"""The token classifier: losses and labels against all sequences, words of several tokens, streams, padding."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForTokenClassification

from longspan.models import LongspanForTokenClassification
from longspan.models.parts.linear_chain import LinearChain, follows
from longspan.models.parts.words import LETTERS, WordCharacters
from longspan.ops.crf import naive_paths

NAMES = ["O", "B-A", "I-A"]


def build(crf: bool = True, **changes: Any) -> LongspanForTokenClassification:
    torch.manual_seed(0)
    settings: dict[str, Any] = {"vocab_size": 9, "dim": 8, "heads": 2, "depth": 1, "dropout": 0.0, "crf": crf}
    settings |= {"id2label": dict(enumerate(NAMES)), "initializer_range": 0.5}
    model = LongspanForTokenClassification(LongspanForTokenClassification.configured(**settings | changes)).double()
    if crf:
        for parameter in model.chain.parameters():
            torch.nn.init.normal_(parameter)
    # Tokens from 6 on continue words; each is a letter.
    begins, letters = torch.arange(9) < 6, torch.zeros(9, LETTERS, dtype=torch.uint8)
    letters[1:, 0] = torch.arange(97, 105)
    model.read_words(begins, letters)
    return model.eval()


IDS = torch.tensor([[1, 6, 2, 3, 4, 7, 8, 5]])
FIRST = [0, 2, 3, 4, 7]
SENTENCES = torch.tensor([[0, 0, 0, 0, 1, 1, 1, 1]])
LABELS = torch.tensor([[1, -100, 2, -100, 0, -100, -100, 1]])


def emissions(model: LongspanForTokenClassification) -> Tensor:
    with torch.no_grad():
        scores: Tensor = model.classifier(model.longspan(IDS).last_hidden_state)
    return scores[0]


def paths(model: LongspanForTokenClassification, positions: list[int]) -> tuple[Tensor, Tensor]:
    chain = model.chain(torch.zeros((), dtype=torch.float64))
    return naive_paths(emissions(model)[positions], *(part.detach() for part in chain))


def test_loss_sums_over_what_is_not_known() -> None:
    model = build()
    total = 0.0
    for positions, known in (([0, 2, 3], {0: 1, 1: 2}), ([4, 7], {0: 0, 1: 1})):
        found, scores = paths(model, positions)
        right = torch.stack([found[:, place] == label for place, label in known.items()]).all(0)
        total += (scores.logsumexp(0) - scores[right].logsumexp(0)).item()
    loss = model(IDS, labels=LABELS, sentence_ids=SENTENCES).loss
    assert loss.item() == pytest.approx(total / 4)
    assert model(IDS, labels=LABELS, sentence_ids=SENTENCES, num_items_in_batch=8).loss.item() == pytest.approx(
        total / 8
    )
    assert model(IDS, labels=torch.full_like(IDS, -100)).loss.item() == 0


def test_logits_are_marginals_and_tags_the_best_sequence() -> None:
    model = build()
    output = model(IDS, sentence_ids=SENTENCES)
    for positions in ([0, 2, 3], [4, 7]):
        found, scores = paths(model, positions)
        shares = scores.softmax(0)
        for place, position in enumerate(positions):
            expected = torch.stack([shares[found[:, place] == label].sum() for label in range(3)])
            torch.testing.assert_close(output.logits[0, position].exp(), expected)
        assert output.tags[0, positions].tolist() == found[scores.argmax()].tolist()


def test_later_tokens_of_a_word_go_on_with_its_label() -> None:
    output = build()(IDS, sentence_ids=SENTENCES)
    shares = output.logits.softmax(-1)[0]
    for position, source in ((1, 0), (5, 4), (6, 4)):
        torch.testing.assert_close(shares[position, 2], shares[source, 1:].sum())
        assert shares[position, 1] < 1e-30
        assert output.tags[0, position] == {0: 0, 1: 2, 2: 2}[int(output.tags[0, source])]


@pytest.mark.parametrize("crf", [False, True])
def test_no_span_begins_with_inside(crf: bool) -> None:
    model = build(crf)
    with torch.no_grad():
        model.classifier.weight.zero_()
        model.classifier.bias.copy_(torch.tensor([0.0, 1.0, 5.0]))
    tags = model(torch.arange(1, 6).unsqueeze(0)).tags[0].tolist()
    assert all(follows(NAMES[a], NAMES[b]) for a, b in itertools.pairwise([0, *tags]))
    assert tags[0] == 1
    assert set(tags[1:]) == {2}


@pytest.mark.parametrize("crf", [False, True])
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_and_batch_mates_change_nothing(crf: bool, side: str) -> None:
    model = build(crf, word_characters=True)
    alone = model(IDS, sentence_ids=SENTENCES, labels=LABELS)
    pads = (3, 0) if side == "left" else (0, 3)
    ids, sentences = (torch.nn.functional.pad(each, pads) for each in (IDS, SENTENCES))
    mask = torch.nn.functional.pad(torch.ones_like(IDS), pads)
    labels = torch.nn.functional.pad(LABELS, pads, value=-100)
    # A batch mate of one word, and one without any.
    single, nothing = torch.zeros_like(ids), torch.zeros_like(ids)
    single[0, 5] = 1
    batch = {
        "input_ids": torch.cat((ids, single, nothing)),
        "attention_mask": torch.cat((mask, (single > 0).long(), nothing)),
        "sentence_ids": torch.cat((sentences, nothing, nothing)),
        "labels": torch.cat((labels, *[torch.full_like(labels, -100)] * 2)),
    }
    together = model(**batch)
    torch.testing.assert_close(together.loss, alone.loss)
    own = slice(3, None) if side == "left" else slice(0, -3)
    torch.testing.assert_close(together.logits[:1, own], alone.logits)
    assert torch.equal(together.tags[:1, own], alone.tags)
    assert together.logits.isfinite().all()


@pytest.mark.parametrize("crf", [False, True])
def test_a_causal_model_labels_a_stream_as_the_whole(crf: bool) -> None:
    model = build(crf, causal=True)
    whole = model(IDS)
    past = chain = None
    logits = []
    for start, end in ((0, 1), (1, 4), (4, 6), (6, 8)):
        found = model(IDS[:, start:end], past_key_values=past, chain_state=chain, use_cache=True)
        past, chain = found.past_key_values, found.chain_state
        logits.append(found.logits)
    torch.testing.assert_close(torch.cat(logits, 1), whole.logits)
    first = model(IDS[:, :6], use_cache=True)
    last = model(IDS[:, 6:], cache=first.past_key_values, chain_state=first.chain_state)
    torch.testing.assert_close(last.logits, whole.logits[:, 6:])
    # What comes later changes nothing.
    torch.testing.assert_close(model(IDS[:, :4]).logits, whole.logits[:, :4])


@pytest.mark.parametrize("crf", [False, True])
def test_gradients_reach_everything_in_bfloat16(crf: bool) -> None:
    model = build(crf, word_characters=True, features=3).bfloat16().train()
    model(IDS, labels=LABELS, sentence_ids=SENTENCES, feature_ids=torch.ones_like(IDS)).loss.backward()
    missing = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()]
    assert not missing


def test_saved_and_loaded_by_the_auto_class(tmp_path: Path) -> None:
    model = build()
    model.save_pretrained(tmp_path)
    loaded = AutoModelForTokenClassification.from_pretrained(tmp_path, dtype=torch.float64).eval()
    assert torch.equal(loaded.begins, model.begins)
    torch.testing.assert_close(loaded(IDS).logits, model(IDS).logits)


def test_a_feature_counts() -> None:
    model = build(False, features=3)
    assert model.features is not None
    torch.nn.init.normal_(model.features.weight)
    plain = model(IDS, feature_ids=torch.zeros_like(IDS)).logits
    assert not torch.allclose(model(IDS, feature_ids=torch.full_like(IDS, 2)).logits, plain)


def test_features_of_neighbours_count_as_far_as_asked() -> None:
    # Without layers, a word sees what is hashed for it and nothing else.
    model = build(False, word_characters=True, features=3, feature_neighbours=1, depth=0)
    words = model.longspan.embeddings.words
    assert isinstance(words, WordCharacters)
    torch.nn.init.normal_(words.table.weight)
    features = torch.ones_like(IDS)
    plain = model(IDS, feature_ids=features).logits[0, FIRST]
    # The feature of the third word of five; that of a word's other tokens does not count.
    features[0, 3] = 2
    found = model(IDS, feature_ids=features).logits[0, FIRST]
    assert (found != plain).any(-1).tolist() == [False, True, True, True, False]
    # Unlike that of a neighbour, which words there are in a row matters: those of the other two come in one order.
    features[0, [2, 3]] = torch.tensor([2, 1])
    assert not torch.allclose(model(IDS, feature_ids=features).logits[0, 3], found[2])


@pytest.mark.parametrize("learned", [False, True])
def test_scores_of_transitions_are_where_the_scores_of_words_are(learned: bool) -> None:
    """Words that were scored once are on the CPU while the model trains on a GPU."""
    like = torch.zeros(4, len(NAMES), dtype=torch.float64, device="meta")
    found = LinearChain(NAMES, learned=learned)(like, torch.zeros(len(NAMES), len(NAMES)), torch.ones(2))
    assert {(each.device.type, each.dtype) for each in found} == {("meta", torch.float64)}
