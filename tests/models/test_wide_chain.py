"""The wide part of token classifiers: its features and scores from their definition, and models that contain one."""

import copy
import itertools
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForTokenClassification

from longspan.errors import UserError
from longspan.models import LongspanForTokenClassification
from longspan.models.parts.words import Torch
from longspan.models.wide.chain import FOLDS, WideChain
from longspan.models.wide.classifier import fold_of
from longspan.models.wide.word_features import characters_of, kinds_of_characters, lower_cases
from longspan.ops.crf import naive_paths
from longspan.ops.words import LETTERS, NOTHING, code_points, word_features

NAMES = ["O", "B-A", "I-A"]
SENTENCES = [
    ["Straße", "in", "Berlin-Mitte", ",", "20.000"],
    ["Ωmega"],
    ["in", "北京", "a" * 300, "Ba"],
    ["Ba"],
    ["Ba", "Ba"],
    ["न", "Ba", "Straße", "Ωmega", "Ba", "In", "in", *"aaaaaaa", "Ba"],
]
#: Tokens: 0 pads; those from 6 on continue words.
PIECES = ["", "Ber", "in", "Ωm", "北", "Ba", "lin", "ega", "京"]


def hashed(sentences: list[list[str]], values: list[list[int]] | None = None) -> list[Tensor]:
    codes, sizes = characters_of([word for words in sentences for word in words])
    by_row = torch.tensor([len(words) for words in sentences])
    given = None if values is None else torch.tensor([value for row in values for value in row])
    found = word_features(codes, sizes, by_row, given, lower_cases(), kinds_of_characters(), Torch)
    return list(found.split(by_row.tolist()))


def shape_of(word: str) -> str:
    kinds = ("X" if c.isupper() else "x" if c.islower() else "d" if c.isdigit() else c for c in word)
    kinds = ("o" if kind not in "Xxd" and kind.isalpha() else kind for kind in kinds)
    return "".join(kind for kind, _ in itertools.groupby(kinds))


def written_out(words: list[str], place: int, values: list[int] | None = None) -> list[object]:
    """Return the features of a word, None for those that it does not have."""

    def at(offset: int) -> str | None:
        return words[place + offset] if 0 <= place + offset < len(words) else None

    def lower(offset: int) -> str | None:
        near = at(offset)
        return None if near is None else near[:100].lower()

    def ending(offset: int) -> str | None:
        near = at(offset)
        return None if near is None else near[-3:].lower()

    def shape(offset: int) -> str | None:
        near = at(offset)
        return None if near is None else shape_of(near)

    own = words[place]
    found: list[object] = ["bias", own[:100], lower(0), shape(0)]
    found += [own[:size].lower() if len(own) >= size else None for size in range(1, 5)]
    found += [own[-size:].lower() if len(own) >= size else None for size in range(1, 5)]
    found += [each(offset) for offset in (-1, 1) for each in (ending, shape)]
    found += [(lower(offset),) for offset in (-3, -2, -1, 1, 2, 3)]
    found += [(lower(a), lower(b)) for a, b in ((-1, 0), (0, 1), (-1, 1), (-2, -1), (1, 2))]
    found += [(each(a), each(b)) for each in (ending, shape) for a, b in ((-1, 0), (0, 1))]
    found += [(lower(-1), shape(0)), (shape(0), lower(1)), (shape(-1), shape(0), shape(1))]
    found += of_run(words, place)
    known = (lower(-place), lower(len(words) - 1 - place), len(words), (len(words), shape(0)), (len(words), place))
    found += known if len(words) <= 12 else [None] * 5
    if values is not None:
        around = {o: values[place + o] if 0 <= place + o < len(words) else None for o in range(-2, 3)}
        for size in (1, 2, 3):
            found += [tuple(around[start + k] for k in range(size)) for start in range(-2, 4 - size)]
    return found


def of_run(words: list[str], place: int) -> list[object]:
    if not words[place][0].isupper():
        return [None] * 6
    first, last = place, place
    while first and words[first - 1][0].isupper():
        first -= 1
    while last + 1 < len(words) and words[last + 1][0].isupper():
        last += 1
    before = words[first - 1].lower()[:100] if first else "beyond"
    after = words[last + 1].lower()[:100] if last + 1 < len(words) else "beyond"
    size = (min(last - first, 5), min(place - first, 3))
    return [words[first].lower(), words[last].lower(), before, after, (before, after), size]


@pytest.mark.parametrize("given", [False, True])
def test_hashes_are_equal_where_features_are(given: bool) -> None:
    values = [[1 + (place * 7 + row) % 2 for place in range(len(words))] for row, words in enumerate(SENTENCES)]
    found = hashed(SENTENCES, values if given else None)
    written: dict[int, object] = {}
    for row, words in enumerate(SENTENCES):
        for place in range(len(words)):
            wanted = written_out(words, place, values[row] if given else None)
            assert len(wanted) == found[row].shape[1]
            for kind, (value, number) in enumerate(zip(wanted, found[row][place].tolist(), strict=True)):
                if value is None:
                    assert number == NOTHING
                else:
                    # One feature has one hash, and one hash has one feature.
                    assert written.setdefault(number, (kind, value)) == (kind, value)
    assert len(set(written.values())) == len(written)


def test_other_words_of_a_batch_change_nothing() -> None:
    for row, words in enumerate(SENTENCES):
        assert torch.equal(hashed(SENTENCES)[row], hashed([words])[0])


def test_a_word_without_characters_has_neighbours() -> None:
    assert hashed([["", "Rome"], [""]])[0].shape == (2, 45)


def test_bytes_are_characters() -> None:
    words = ["Straße", "", "北京", "😀é", "a"]
    spelled = torch.tensor([byte for word in words for byte in word.encode()])
    word = torch.tensor([number for number, word in enumerate(words) for _ in word.encode()])
    for found, wanted in zip(code_points(spelled, word, 5, Torch), characters_of(words), strict=True):
        assert torch.equal(found, wanted)


def build(wide: bool = True, **changes: object) -> LongspanForTokenClassification:
    torch.manual_seed(0)
    settings: dict[str, object] = {"vocab_size": 9, "dim": 8, "heads": 2, "depth": 1, "crf": True, "wide": wide}
    settings |= {"id2label": dict(enumerate(NAMES)), "initializer_range": 0.5, "wide_size": 60 if wide else 0}
    model = LongspanForTokenClassification(LongspanForTokenClassification.configured(**settings | changes))
    spelling = torch.zeros(9, LETTERS, dtype=torch.uint8)
    for row, piece in enumerate(PIECES):
        spelling[row, : len(piece.encode())] = torch.tensor(list(piece.encode()), dtype=torch.uint8)
    model.read_words(torch.arange(9) < 6, spelling)
    if model.wide is not None:
        known = hashed([["Berlin", "in", "Ωmega", "北京"], ["Ba"]])
        keys = torch.cat(known).unique()
        model.wide.keys.copy_(keys[keys != NOTHING][:60])
        for tensor in (model.wide.weight, model.wide.transitions, *model.chain.parameters()):
            torch.nn.init.normal_(tensor)
        model.wide.scales.copy_(torch.tensor([0.75, 0.5]))
        model.wide.held_out = torch.randn(FOLDS, 60, 3).half()
    return model.eval()


IDS = torch.tensor([[1, 6, 2, 3, 7, 4, 8, 5]])
FIRST = [0, 2, 3, 5, 7]
ROWS = [["Berlin", "in", "Ωmega"], ["北京", "Ba"]]
SENTENCE_IDS = torch.tensor([[0, 0, 0, 0, 0, 1, 1, 1]])


def written_scores(wide: WideChain, weight: Tensor) -> Tensor:
    """Return the scores of the words of `ROWS`, from the definition."""
    numbers = {key: number for number, key in enumerate(wide.keys.tolist())}
    rows = [words.tolist() for row in hashed(ROWS) for words in row]
    return torch.stack([sum((weight[numbers[k]] for k in row if k in numbers), torch.zeros(3)) for row in rows])


def test_scores_are_sums_of_weights_of_known_features() -> None:
    model = build()
    assert model.wide is not None
    found = model(IDS, sentence_ids=SENTENCE_IDS)
    wanted = written_scores(model.wide, model.wide.weight)
    assert len(wanted.unique()) == 15
    torch.testing.assert_close(found.parts[0, FIRST, 0], wanted)
    # Other tokens of a word have the word's.
    torch.testing.assert_close(found.parts[0, 1, 0], wanted[0])
    model.train()
    fold = int(fold_of(IDS, None, FOLDS))
    rows = torch.tensor([3, 2])
    first = torch.tensor([[place in FIRST for place in range(8)]])
    trained = model.wide(IDS, None, first, rows)
    assert model.wide.held_out is not None
    # Of float16, in another order.
    torch.testing.assert_close(trained[0, FIRST], written_scores(model.wide, model.wide.held_out[fold].float()))


def test_tags_and_logits_are_those_of_both_parts_times_their_scales() -> None:
    model = build()
    wide = model.wide
    assert wide is not None
    labels = torch.full((1, 8), -100)
    labels[0, FIRST] = torch.tensor([1, 2, 0, 0, 1])
    found = model(IDS, sentence_ids=SENTENCE_IDS, labels=labels)
    scores = 0.75 * found.parts[0, :, 0] + 0.5 * found.parts[0, :, 1]
    never = torch.tensor([[0.0, 0, -1e4], [0, 0, 0], [0, 0, 0]])
    transitions = 0.75 * wide.transitions + 0.5 * model.chain.transitions + never
    start, end = 0.5 * model.chain.start + never[0], 0.5 * model.chain.end
    loss = 0.0
    for places, right in (([0, 2, 3], (1, 2, 0)), ([5, 7], (0, 1))):
        paths, totals = naive_paths(scores[places], transitions, start, end)
        shares = totals.softmax(0)
        assert found.tags[0, places].tolist() == paths[int(totals.argmax())].tolist()
        for number, place in enumerate(places):
            for label in range(3):
                likely = shares[paths[:, number] == label].sum()
                # Sums of 27 paths in float32.
                torch.testing.assert_close(found.logits[0, place, label].exp(), likely, rtol=1e-4, atol=1e-5)
        loss -= totals.log_softmax(0)[(paths == torch.tensor(right)).all(1)].item()
    assert found.loss.item() == pytest.approx(loss / 5, rel=1e-5)


@pytest.mark.parametrize("left", [False, True])
def test_padding_and_batch_mates_change_nothing(left: bool) -> None:
    model = build(mixers=["additive"])
    alone = model(IDS)
    ids, mask = torch.zeros(3, 12, dtype=torch.long), torch.zeros(3, 12, dtype=torch.long)
    place = slice(4, 12) if left else slice(0, 8)
    ids[0, place], mask[0, place] = IDS[0], 1
    single = -1 if left else 0
    ids[2, single], mask[2, single] = 5, 1
    found = model(ids, attention_mask=mask)
    # Sums over other numbers of padded positions.
    torch.testing.assert_close(found.logits[:1, place], alone.logits, rtol=1e-4, atol=1e-5)
    assert torch.equal(found.tags[:1, place], alone.tags)
    torch.testing.assert_close(found.logits[2, single], model(torch.tensor([[5]])).logits[0, 0], rtol=1e-4, atol=1e-5)
    assert found.logits.isfinite().all()


def test_the_network_is_trained_alone() -> None:
    model = build(dropout=0.0)
    labels = torch.full((1, 8), -100)
    labels[0, FIRST] = torch.tensor([1, 2, 0, 0, 1])
    model.train()
    found = model(IDS, labels=labels)
    assert found.parts is None
    found.loss.backward()
    assert model.wide is not None
    assert not list(model.wide.parameters())
    assert model.evidence.weight.grad is not None
    before = found.loss.item()
    model.wide.scales.zero_()
    assert model(IDS, labels=labels).loss.item() == before


def test_an_empty_one_says_nothing() -> None:
    settings = {"vocab_size": 9, "dim": 8, "heads": 2, "depth": 1, "wide": True, "id2label": dict(enumerate(NAMES))}
    made = LongspanForTokenClassification(LongspanForTokenClassification.configured(**settings)).eval()
    assert made.wide is not None
    assert made.wide.weight.shape == (1, 3)
    assert not made(IDS).parts[:, :, 0].any()


def test_it_is_saved_and_loaded(tmp_path: Path) -> None:
    model = build()
    wanted = model(IDS, sentence_ids=SENTENCE_IDS)
    model.save_pretrained(tmp_path)
    again = AutoModelForTokenClassification.from_pretrained(tmp_path)
    found = again(IDS, sentence_ids=SENTENCE_IDS)
    torch.testing.assert_close(found.logits, wanted.logits)
    assert again.wide.held_out is None
    trained = sum(parameter.numel() for parameter in again.parameters())
    assert again.num_parameters(only_trainable=True) == trained
    assert again.num_parameters() == trained + 60 * 3 + 9
    copied = copy.deepcopy(again)
    torch.testing.assert_close(copied(IDS, sentence_ids=SENTENCE_IDS).logits, wanted.logits)


def test_half_precision_is_summed_in_float32() -> None:
    model = build()
    half = copy.deepcopy(model).bfloat16()
    found, wanted = (each(IDS).parts[:, :, 0] for each in (half, model))
    assert found.dtype == torch.float32
    # Each of at most 22 weights is rounded by 2^-9.
    torch.testing.assert_close(found, wanted, rtol=0.02, atol=0.05)
    assert half(IDS).tags.shape == (1, 8)


def test_tokens_are_added() -> None:
    model = build()
    wanted = model(IDS).logits
    assert model.wide is not None
    model.resize_token_embeddings(12, mean_resizing=False)
    assert model.wide.spelling.shape == (12, LETTERS)
    torch.testing.assert_close(model(IDS).logits, wanted)
    assert model(torch.tensor([[11, 2]])).logits.isfinite().all()


def test_what_it_cannot_read_is_refused() -> None:
    with pytest.raises(UserError, match="expected input_ids for a model with wide=True"):
        build()(inputs_embeds=torch.randn(1, 4, 8))
    with pytest.raises(UserError, match="wide=True reads the words after each word"):
        build(causal=True)
