"""What words look like, against the same features word by word, and tokens gathered by sentence."""

import pytest
import torch
from torch import Tensor

from longspan import LongspanModel, UserError
from longspan.models.parts.words import AFFIX, LETTERS, WordCharacters, first_of_words, gathered

# Tokens and whether they begin a word; the first is padding.
PIECES = [("", False), ("Un", True), ("seen", False), ("b", True), ("2", False), ("-x", False), ("\u00e9t\u00e9", True)]


def module(dim: int = 4, dropout: float = 0.0) -> WordCharacters:
    torch.manual_seed(0)
    made = WordCharacters(len(PIECES), dim, buckets=997, dropout=dropout)
    torch.nn.init.normal_(made.table.weight)
    with torch.no_grad():
        made.table.weight[0] = 0
    for number, (piece, begins) in enumerate(PIECES):
        spelled = list(piece.encode())
        made.spelling[number, : len(spelled)] = torch.tensor(spelled, dtype=torch.uint8)
        made.begins[number] = begins
    return made


def features(word: bytes) -> list[tuple[int, int]]:
    """Return (salt, key) of each feature, one by one."""
    prime, factor = 2**31 - 1, 1_103_515_245
    lower = word.lower()
    found = [(salt, sum((c + 1) * pow(factor, i, prime) for i, c in enumerate(text)) % prime)
             for salt, text in enumerate((word, lower))]  # fmt: skip
    kinds = [
        word[:1].isupper(), any(65 <= c <= 90 for c in word[1:]), any(97 <= c <= 122 for c in word),
        any(48 <= c <= 57 for c in word), any(c >= 128 for c in word), any(c in b"-.'" for c in word),
    ]  # fmt: skip
    found.append((2, sum(1 << number for number, kind in enumerate(kinds) if kind)))
    salt = 3
    for text in (lower, lower[::-1]):
        for size in range(1, AFFIX + 1):
            key = 0
            for c in text[:size]:
                key = (key * factor + c + 1) % prime
            found += [(salt, key)] if len(text) >= size else []
            salt += 1
    return found


def naive(made: WordCharacters, words: list[str]) -> Tensor:
    prime, spread, places = 2**31 - 1, 1_597_334_677, made.table.num_embeddings - 1
    rows = [[(key * spread + salt) % prime % places + 1 for salt, key in features(word.encode())] for word in words]
    return torch.stack([made.table.weight[row].sum(0) for row in rows])


def test_every_token_of_a_word_has_the_features_of_the_whole() -> None:
    made = module()
    ids = torch.tensor([[1, 2, 3, 4, 5, 6, 0, 0], [0, 0, 0, 6, 2, 2, 1, 3]])
    mask = torch.tensor([[1, 1, 1, 1, 1, 1, 0, 0], [0, 0, 0, 1, 1, 1, 1, 1]]).bool()
    found = made(ids, mask)
    words = [["Unseen"] * 2 + ["b2-x"] * 3 + ["\u00e9t\u00e9"], ["\u00e9t\u00e9seenseen"] * 3 + ["Un", "b"]]
    for row, expected in enumerate(words):
        torch.testing.assert_close(found[row][mask[row]], naive(made, expected))
        assert not found[row][~mask[row]].any()


def test_rows_of_padding_and_words_without_characters() -> None:
    made = module()
    assert not made(torch.zeros(2, 3, dtype=torch.long), torch.zeros(2, 3, dtype=torch.bool)).any()
    assert made(torch.tensor([[0, 1]])).shape == (1, 2, 4)
    assert made(torch.zeros(0, 3, dtype=torch.long)).shape == (0, 3, 4)


def test_dropout_leaves_the_parts_of_words() -> None:
    made = module(dropout=1.0)
    ids = torch.tensor([[1, 2]])
    without = naive(made, ["Unseen"]) - made.table.weight[
        [(key * 1_597_334_677 + salt) % (2**31 - 1) % 996 + 1 for salt, key in features(b"Unseen")[:2]]
    ].sum(0)
    torch.testing.assert_close(made(ids)[0, :1], without)


def test_the_first_token_of_a_row_begins_a_word_wherever_padding_is() -> None:
    begins = torch.tensor([True, True, False])
    ids, mask = torch.tensor([[2, 2, 1, 2], [0, 2, 2, 1]]), torch.tensor([[1, 1, 1, 0], [0, 1, 1, 1]]).bool()
    expected = [[True, False, True, False], [False, True, False, True]]
    assert first_of_words(ids, begins, mask).tolist() == expected


def test_words_gathered_by_sentence_go_back_to_their_places() -> None:
    first = torch.tensor([[1, 0, 1, 1, 0], [0, 0, 0, 0, 0], [0, 1, 0, 1, 1]]).bool()
    sentences = torch.tensor([[0, 0, 0, 1, 1], [0, 0, 0, 0, 0], [3, 3, 3, 3, 3]])
    rows = gathered(first, sentences)
    assert rows.lengths.tolist() == [2, 1, 3]
    values = torch.arange(15.0).view(3, 5)
    together = rows.rows(values)
    assert together.tolist() == [[0, 2, 0], [3, 0, 0], [11, 13, 14]]
    back = rows.back(values, -together)
    torch.testing.assert_close(back, torch.where(first, -values, values))


def test_a_model_sees_the_same_word_however_it_was_cut() -> None:
    torch.manual_seed(0)
    config = LongspanModel.configured(vocab_size=7, dim=8, heads=2, depth=1, word_characters=True, word_buckets=97)
    model = LongspanModel(config).eval()
    torch.nn.init.normal_(model.embeddings.words.table.weight)
    assert model.embeddings.words.spelling.shape == (7, LETTERS)
    model.read_words(module().begins, module().spelling)
    embedded = model.embeddings.words(torch.tensor([[1, 2]]))
    torch.testing.assert_close(embedded[0, 0], embedded[0, 1])
    with pytest.raises(UserError, match="word_characters=True with causal=True; leave"):
        LongspanModel.configured(word_characters=True, causal=True)
    with pytest.raises(UserError, match="word_buckets needs characters of words"):
        LongspanModel.configured(word_buckets=7)
    with pytest.raises(UserError, match="this model has word_characters of them, got inputs_embeds"):
        model(inputs_embeds=torch.zeros(1, 2, 8))
    model.resize_token_embeddings(9)
    assert model(torch.tensor([[8, 1]])).last_hidden_state.shape == (1, 2, 8)


def test_neighbours_count_within_a_row_and_by_their_place() -> None:
    torch.manual_seed(0)
    made = WordCharacters(len(PIECES), 4, buckets=9973, neighbours=2)
    torch.nn.init.normal_(made.table.weight)
    plain = module()
    made.begins.copy_(plain.begins)
    made.spelling.copy_(plain.spelling)
    # Words of one token each: 1, 3 and 6.
    rows = torch.tensor([[1, 3, 6, 1, 3], [3, 3, 6, 1, 3], [1, 3, 6, 6, 3], [3, 1, 6, 1, 3]])
    found = made(rows)
    # Two places away a word counts, three away it does not.
    assert not torch.allclose(found[0, 2], found[1, 2])
    torch.testing.assert_close(found[0, 3:], found[1, 3:])
    torch.testing.assert_close(found[0, 0], found[2, 0])
    assert not torch.allclose(found[0, 1], found[2, 1])
    # The same neighbours in another order are others.
    assert not torch.allclose(found[0, 2], found[3, 2])
    for pads in ((2, 0), (0, 3)):
        ids = torch.nn.functional.pad(rows, pads)
        mask = torch.nn.functional.pad(torch.ones_like(rows), pads).bool()
        torch.testing.assert_close(made(ids, mask)[mask], found.flatten(0, 1))


@pytest.mark.parametrize("sentences", [None, torch.zeros(1, 4, dtype=torch.long)])
def test_padding_alone_has_no_rows_of_words(sentences: Tensor | None) -> None:
    rows = gathered(torch.zeros(1, 4, dtype=torch.bool), sentences)
    assert len(rows.lengths) == len(rows.row) == len(rows.place) == 0
    assert rows.rows(torch.ones(1, 4, 3)).shape == (0, 0, 3)
    assert not rows.back(torch.zeros(1, 4, 3), torch.ones(0, 0, 3)).any()
