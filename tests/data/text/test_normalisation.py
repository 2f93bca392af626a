"""However the accents of a text were typed, it has the same tokens, with offsets in the text as it was given."""

import json
import unicodedata
from pathlib import Path

import pytest
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan import recipes
from longspan.data.columns.kinds import Column, Label, Labels, WordLabels
from longspan.data.config import DataConfig
from longspan.data.text.long_documents import token_arrays, tokenize_documents
from longspan.data.text.tokenization import build_tokenizer, token_ids
from longspan.tasks.base.task import baselines_in
from longspan.tasks.document_classification import baselines

TEXTS = [
    "Größe und Übermut, café à la carte",
    "İstanbul 한국어 각 naïve Å ﬁn",
    "e\u0301 e\u0323\u0302 plain text\nnext line",
]
LEARNED = ["words", "whitespace", "pieces", "bpe", "characters"]


def tokenizer(tokens: str, lowercase: bool = False):
    config = DataConfig(tokens=tokens, vocab_size=500, lowercase=lowercase)
    return build_tokenizer(config, TEXTS * 3), config


@pytest.mark.parametrize("lowercase", [False, True])
@pytest.mark.parametrize("tokens", LEARNED)
def test_both_forms_have_the_same_tokens(tokens: str, lowercase: bool) -> None:
    found, _ = tokenizer(tokens, lowercase)
    for text in TEXTS:
        forms = [unicodedata.normalize(form, text) for form in ("NFC", "NFD")]
        one, other = token_ids(found, forms)
        assert one.tolist() == other.tolist()
        assert one.tolist() == found(forms[1], add_special_tokens=False)["input_ids"]
        assert found.unk_token_id not in one


def test_bytes_are_as_they_were() -> None:
    found, _ = tokenizer("bytes")
    text = unicodedata.normalize("NFD", "é")
    assert found.decode(token_ids(found, [text])[0].tolist()) == text


@settings(max_examples=60, deadline=None)
@given(st.text(st.sampled_from("aeé e\u0301\u0323\u0308ö ü\u1100\u1161\u11a8각\n.'𝔘ﬁ"), max_size=20))
def test_offsets_are_those_of_the_given_text(text: str) -> None:
    found, _ = tokenizer("words")
    encoded = found(text, add_special_tokens=False, return_offsets_mapping=True)
    known = dict(found.get_vocab())
    for number, (start, end) in zip(encoded["input_ids"], encoded["offset_mapping"], strict=True):
        assert 0 <= start < end <= len(text)
        word = unicodedata.normalize("NFC", text[start:end])
        assert known.get(word, found.unk_token_id) == number


@pytest.mark.parametrize("tokens", ["characters", "bpe", "bytes"])
def test_documents_in_pieces_have_the_tokens_of_the_whole(tokens: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from longspan.data.text import long_documents

    monkeypatch.setattr(long_documents, "_PIECE", 3)
    found, config = tokenizer(tokens)
    texts = [unicodedata.normalize("NFD", text) for text in TEXTS]
    documents = Dataset.from_dict({"text": texts, "where": ["a", "b", "c"]})
    rows = token_arrays(tokenize_documents(documents, found, config, "Tokenising"))
    assert [row.tolist() for row in rows] == [ids.tolist() for ids in token_ids(found, texts)]


@pytest.mark.parametrize("column", [Label("y", "y_column"), Labels("y", "y_column"), WordLabels("y", "y_column")])
def test_labels_are_the_same_in_both_forms(column: Column) -> None:
    cells = [unicodedata.normalize(form, "Straße é") for form in ("NFC", "NFD")]
    listed = [cell if isinstance(column, Label) else [cell] for cell in cells]
    assert column.parse(listed[0], Path()) == column.parse(listed[1], Path())


def test_baselines_have_the_same_words_in_both_forms(tmp_path: Path) -> None:
    rows = [{"text": f"café {word} {number}", "label": label} for number in range(40)
            for word, label in [("über", "a"), ("naïve", "b")]]  # fmt: skip
    found = []
    for form in ("NFC", "NFD"):
        lines = [json.dumps({**row, "text": unicodedata.normalize(form, row["text"])}) for row in rows]
        (tmp_path / f"{form}.jsonl").write_text("\n".join(lines), encoding="utf-8")
        recipe = recipes.load("classify", [f"data.path={tmp_path / form}.jsonl"])
        baseline = baselines_in(baselines)["nb"]()
        found.append(baseline.fit(recipe))
    assert found[0].parameters == found[1].parameters
    assert found[0].scores["validation"].numbers() == found[1].scores["validation"].numbers()
