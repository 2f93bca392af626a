"""The wide part of a classifier, against its definition."""

import copy
import json
import math
import zlib
from collections import Counter

import pytest
import torch
from transformers import AutoModelForSequenceClassification

from longspan import LongspanForSequenceClassification
from longspan.errors import UserError
from longspan.models.wide.classifier import _FACTORS, _PRIME, FOLDS, LONGEST, Wide, fold_of, ngram_counts, spelled
from longspan.programs import making


def hash_of(gram):
    return sum((token + 1) * _FACTORS[place] for place, token in enumerate(reversed(gram))) % _PRIME


def written_out(tokens, spelling=None):
    """Return how often a document has each n-gram, by their hashes, from the definition."""
    sizes = range(1, LONGEST + 1)
    found = Counter(hash_of(tokens[end - size : end]) for size in sizes for end in range(size, len(tokens) + 1))
    for token in tokens if spelling else ():
        found.update(parts_of(spelling[token]))
    return found


def parts_of(token):
    """Return the hashes of a token's different n-grams of characters, with repetitions if hashes are equal."""
    text = f" {token} "[:14] if token else ""
    parts = {text[start:end] for start in range(len(text)) for end in range(start + 2, start + 6) if end <= len(text)}
    return [zlib.crc32(part.encode()) % _PRIME for part in parts]


def filled(wide, spelling=None):
    """Give two of three n-grams of the documents a place, and all places weights."""
    for number, key in enumerate(sorted(set().union(*(written_out(document, spelling) for document in DOCUMENTS)))):
        if number % 3:
            wide.keys[key % wide.buckets] = key
    for tensor in (wide.weight, wide.tfidf_weight, wide.ratio, wide.bias):
        tensor.normal_()
    wide.idf.uniform_(0.5, 2.0)
    return wide


DOCUMENTS: tuple[list[int], ...] = ([5, 3, 5, 3, 5, 9], [7], [], [4, 4, 4, 4], [2**31 - 2, 0, 2**31 - 2])


class Spelling(dict[int, str]):
    """Tokens by their ids; others are special."""

    def __missing__(self, token: int) -> str:
        return ""


SPELLING = Spelling({3: "bored", 4: "boring", 5: "a", 7: "naïve 好", 9: "incomprehensibly"})


def padded(left):
    longest = max(map(len, DOCUMENTS)) + 1
    ids, mask = torch.zeros(2, len(DOCUMENTS), longest, dtype=torch.long).unbind()
    for row, document in enumerate(DOCUMENTS):
        start = longest - len(document) if left else 0
        ids[row, start : start + len(document)] = torch.tensor(document, dtype=torch.long)
        mask[row, start : start + len(document)] = 1
    return ids, mask.bool()


@pytest.mark.parametrize("left", [False, True])
def test_counts_are_those_of_the_n_grams(left):
    ids, mask = padded(left)
    found, times = ngram_counts(ids, mask)
    for row, document in enumerate(DOCUMENTS):
        there = times[row] > 0
        known = dict(zip(found[row][there].tolist(), times[row][there].tolist(), strict=True))
        assert known == written_out(document)
        assert int(there.sum()) == len(known)


def logits_written_out(wide, document, spelling=None):
    """Return the logits of a document in float64, from the definition."""
    weight, tfidf_weight, idf, bias = (
        tensor.double() for tensor in (wide.weight, wide.tfidf_weight, wide.idf, wide.bias)
    )
    given = written_out(document, spelling)
    places = {key % wide.buckets: n for key, n in given.items() if wide.keys[key % wide.buckets] == key}
    amounts = {place: (1 + math.log(times)) * float(idf[place]) for place, times in places.items()}
    length = math.sqrt(sum(amount**2 for amount in amounts.values())) or 1.0
    shares = {place: amount / length for place, amount in amounts.items()}
    return len(places), sum((weight[place] + share * tfidf_weight[place] for place, share in shares.items()), bias)


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("buckets", [1, 7, 2**12])
@pytest.mark.parametrize("spelling", [None, SPELLING])
def test_logits_are_sums_over_those_with_a_place(left, buckets, spelling, monkeypatch):
    wide = filled(Wide(buckets, 3, 10 if spelling else None), spelling)
    ids, mask = padded(left)
    if spelling:
        wide.spelling.copy_(spelled([SPELLING[token] for token in range(10)]))
        # Its tokens end here.
        monkeypatch.setattr("test_wide.DOCUMENTS", DOCUMENTS[:4])
        ids, mask = ids[:4], mask[:4]
    found = wide(ids, mask)
    known = 0
    for row, document in enumerate(DOCUMENTS):
        count, wanted = logits_written_out(wide, document, spelling)
        known += count
        torch.testing.assert_close(found[row], wanted.float(), rtol=1e-5, atol=1e-5)
        if document:
            alone = wide(torch.tensor([document]))
            torch.testing.assert_close(found[row], alone[0], rtol=1e-6, atol=1e-6)
    assert known


@pytest.mark.parametrize("left", [False, True])
def test_evidence_is_that_of_the_n_grams_that_end_there(left):
    wide = filled(Wide(64, 2)).eval()
    wide.held_out = torch.randn(FOLDS, 64, 2).half()
    ids, mask = padded(left)
    for training in (False, True):
        found = wide.train(training).evidence(ids, mask)
        assert not found[~mask].any()
        for row, document in enumerate(DOCUMENTS):
            ratio = wide.held_out[sum(document) * _FACTORS[0] % _PRIME % FOLDS].float() if training else wide.ratio
            of_row = found[row][mask[row]].unflatten(-1, (LONGEST, 2))
            for end in range(len(document)):
                for size in range(1, LONGEST + 1):
                    key = hash_of(document[max(0, end + 1 - size) : end + 1])
                    there = end + 1 >= size and wide.keys[key % 64] == key
                    wanted = ratio[key % 64] if there else torch.zeros(2)
                    assert torch.equal(of_row[end, size - 1], wanted)


def test_folds_are_those_of_the_documents_however_they_are_padded():
    (left, mask), (right, other) = padded(True), padded(False)
    wanted = [sum(document) * _FACTORS[0] % _PRIME % FOLDS for document in DOCUMENTS]
    assert fold_of(left, mask).tolist() == fold_of(right, other).tolist() == wanted
    assert fold_of(torch.tensor([DOCUMENTS[0]])).tolist() == wanted[:1]
    many = torch.randint(0, 30000, (1000, 50), generator=torch.Generator().manual_seed(0))
    # Five standard deviations of a binomial count around 200.
    assert all(abs(int(count) - 200) < 64 for count in fold_of(many).bincount(minlength=FOLDS))


def test_a_token_is_spelled_by_its_n_grams_of_characters():
    found = spelled(["to", "", "x", "incomprehensibly"])
    written: tuple[list[str], ...] = [" t", "to", "o ", " to", "to ", " to "], [], [" x", "x ", " x "]
    for row, parts in zip(found, written, strict=False):
        assert row[row < _PRIME].tolist() == sorted(zlib.crc32(part.encode()) % _PRIME for part in parts)
    assert found.dtype == torch.int32
    # Of 14 characters, the space before the token included.
    assert int((found[3] < _PRIME).sum()) == found.shape[1] == 13 + 12 + 11 + 10
    assert torch.equal(found[3], spelled(["incomprehensive"])[0])
    assert not torch.equal(found[3], spelled(["incomprehend"])[0])


def test_different_n_grams_rarely_have_the_same_hash():
    ids = torch.randint(0, 30000, (1, 20000), generator=torch.Generator().manual_seed(0))
    _, times = ngram_counts(ids, None)
    pairs, triples = (ids.unfold(1, size, 1)[0].unique(dim=0).shape[0] for size in (2, 3))
    # Of 2 billion pairs of n-grams, one has the same hash by chance.
    assert 0 <= len(ids.unique()) + pairs + triples - int((times > 0).sum()) <= 5


def config(**more):
    return LongspanForSequenceClassification.configured(
        vocab_size=50, dim=8, depth=1, heads=2, num_labels=3, wide=True, wide_buckets=64, initializer_range=0.5,
        problem_type="single_label_classification", **more,
    )  # fmt: skip


@pytest.fixture
def model():
    found = LongspanForSequenceClassification(config())
    with torch.no_grad():
        filled(found.wide)
        found.wide.scales.copy_(torch.tensor([0.75, 0.5]))
    return found.eval()


def test_a_new_one_says_nothing():
    made = LongspanForSequenceClassification(config()).eval()
    ids = torch.randint(3, 10, (2, 5))
    plain = copy.deepcopy(made)
    plain.wide = None
    torch.testing.assert_close(made(ids).logits, plain(ids).logits)
    assert plain(ids).parts is None


def test_both_parts_times_their_scales(model):
    ids = torch.randint(3, 10, (2, 5))
    labels = torch.tensor([2, 0])
    found = model(ids, labels=labels)
    wide, deep = found.parts.unbind(1)
    torch.testing.assert_close(found.logits, 0.75 * wide + 0.5 * deep)
    torch.testing.assert_close(wide, model.wide(ids))
    torch.testing.assert_close(found.loss, torch.nn.functional.cross_entropy(found.logits, labels))


def test_the_deep_part_is_trained_alone(model):
    ids, labels = torch.randint(3, 10, (2, 5)), torch.tensor([2, 0])
    for part in (model.dropout, model.longspan.dropout, *(block for block in model.longspan.backbone.layers)):
        part.eval()
    deep = model(ids).parts[:, 1]
    model.train()
    for module in model.modules():
        if module is not model:
            module.eval()
    found = model(ids, labels=labels)
    torch.testing.assert_close(found.logits, deep)
    found.loss.backward()
    assert not list(model.wide.parameters())
    assert model.classifier.weight.grad is not None


def test_it_is_saved_and_loaded(model, tmp_path):
    model.save_pretrained(tmp_path)
    again = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    ids = torch.randint(3, 10, (2, 5))
    torch.testing.assert_close(again(ids).logits, model(ids).logits)
    trained = sum(parameter.numel() for parameter in again.parameters())
    assert not any(tensor.requires_grad for tensor in again.wide.state_dict().values())
    assert again.num_parameters(only_trainable=True) == trained
    assert again.num_parameters() == trained + 2 * 64 + 3 * 64 * 3 + 3 + 2


def test_weights_that_are_not_there_are_zeros(model, tmp_path):
    plain = copy.deepcopy(model)
    plain.wide, plain.config.head.wide = None, False
    plain.save_pretrained(tmp_path)
    again = LongspanForSequenceClassification.from_pretrained(tmp_path, wide=True, wide_buckets=64)
    ids = torch.randint(3, 10, (2, 5))
    torch.testing.assert_close(again(ids).logits, plain(ids).logits)


def test_half_precision_is_summed_in_float32(model):
    ids = torch.randint(3, 10, (2, 400))
    whole = model.wide(ids)
    assert not torch.equal(whole[0], whole[1])
    half = copy.deepcopy(model.wide).bfloat16()(ids)
    assert half.dtype == torch.float32
    # Each weight is rounded by 2^-9 at most, and rounding errors are as often up as down.
    torch.testing.assert_close(half, whole, rtol=0.02, atol=0.05)


def test_characters_are_saved_and_tokens_added(tmp_path):
    model = LongspanForSequenceClassification(config(wide_characters=True)).eval()
    filled(model.wide, SPELLING)
    ids = torch.tensor([[3, 4, 5], [9, 4, 4]])
    without = model.wide(ids)
    model.wide.spelling.copy_(spelled([SPELLING[token] for token in range(50)]))
    wanted = model(ids).logits
    assert (model.wide(ids) - without).abs().min() > 1e-3
    for tokens in (60, 12):
        model.resize_token_embeddings(tokens, mean_resizing=False)
        assert len(model.wide.spelling) == tokens
        model.save_pretrained(tmp_path)
        again = AutoModelForSequenceClassification.from_pretrained(tmp_path)
        torch.testing.assert_close(again(ids).logits, wanted)
        assert again(torch.tensor([[tokens - 1]])).logits.isfinite().all()


def test_a_model_of_before_has_no_characters(model, tmp_path):
    model.save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    saved = json.loads(file.read_text())
    del saved["head"]["wide_characters"]
    file.write_text(json.dumps(saved))
    again = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert again.wide.spelling is None
    ids = torch.randint(3, 10, (2, 5))
    torch.testing.assert_close(again(ids).logits, model(ids).logits)
    with pytest.raises(UserError, match="wide_characters needs a wide part"):
        LongspanForSequenceClassification.configured(wide_characters=True)


def test_embeddings_have_no_n_grams(model):
    with pytest.raises(UserError, match="expected input_ids for a model with wide=True"):
        model(inputs_embeds=torch.randn(1, 4, 8))


@pytest.mark.slow
def test_one_program_for_all_sizes(model):
    program = making.export_program(model, None).module()
    for left in (False, True):
        ids = torch.randint(1, 50, (4, 9))
        mask = torch.ones_like(ids)
        mask[1, -4:] = mask[2, :3] = 0
        given = (ids.flip(1), mask.flip(1)) if left else (ids, mask)
        torch.testing.assert_close(program(*given), model(*given).logits)
    one = torch.ones(1, 1, dtype=torch.long)
    torch.testing.assert_close(program(one, one), model(one, one).logits)


@pytest.mark.parametrize("spelling", [None, SPELLING])
def test_shares_of_n_grams_add_up_to_the_logits(spelling, monkeypatch):
    """All but the bias, wherever an n-gram occurs, and split evenly among its tokens."""
    # Documents of tokens that are spelled.
    monkeypatch.setattr("test_wide.DOCUMENTS", DOCUMENTS[:4])
    wide = filled(Wide(2**12, 3, 10 if spelling else None), spelling)
    if spelling:
        wide.spelling.copy_(spelled([SPELLING[token] for token in range(10)]))
    for document in (DOCUMENTS[0], DOCUMENTS[3]):
        ids = torch.tensor(document)
        found, logits = wide.ngrams(ids), wide(ids.unsqueeze(0))[0]
        assert len(found.begin)
        torch.testing.assert_close(found.logits.sum(0) + wide.bias, logits)
        # The same n-grams have the same number, and others another one.
        pairs = set(zip(found.hash.tolist(), found.number.tolist(), strict=True))
        assert len(pairs) == len(set(found.hash.tolist())) == len(set(found.number.tolist()))
        size = found.end - found.begin
        assert ((size >= 1) & (size <= LONGEST)).all()
        shares = found.of_tokens(len(ids))
        torch.testing.assert_close(shares.sum(0) + wide.bias, logits)
        # What contains a token is all that it is given.
        first = found.begin == 0
        torch.testing.assert_close(shares[0], (found.logits[first] / size[first].unsqueeze(1)).sum(0))
