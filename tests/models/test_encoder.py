"""Pretrained encoders over overlapping windows, beside the encoder itself on one window at a time."""

import itertools
from pathlib import Path
from typing import Any

import checkpointing
import numpy as np
import pytest
import torch
from encoders import make_encoder
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import (
    AutoModel,
    BertConfig,
    CanineConfig,
    ConvBertConfig,
    DistilBertConfig,
    GPT2Config,
    ModernBertConfig,
    PreTrainedConfig,
    RobertaConfig,
    T5Config,
    ViTConfig,
)

from longspan import (
    LongspanConfig,
    LongspanForCausalLM,
    LongspanForMaskedLM,
    LongspanForSequenceClassification,
    LongspanModel,
)
from longspan.errors import UserError
from longspan.models.window_encoder import WindowEncoder, configured, described, to_storage_type, windows

SIZE = {"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
CLS, SEP = 2, 3
WINDOW = 12
# Sums over a batch of other rows are other sums, in float32.
CLOSE: dict[str, Any] = {"atol": 2e-5, "rtol": 1e-4}

#: Each with the number of its padding.
ENCODERS: dict[str, tuple[PreTrainedConfig, int]] = {
    "bert": (BertConfig(**SIZE, max_position_embeddings=WINDOW), 0),
    # It counts positions from its padding's number on.
    "roberta": (RobertaConfig(**SIZE, max_position_embeddings=WINDOW + 2, pad_token_id=1), 1),
    "distilbert": (
        DistilBertConfig(vocab_size=32, dim=16, n_layers=1, n_heads=2, hidden_dim=24, max_position_embeddings=WINDOW),
        0,
    ),
    "modernbert": (
        ModernBertConfig(**SIZE, max_position_embeddings=WINDOW, local_attention=6, pad_token_id=0, cls_token_id=CLS),
        0,
    ),
    "gpt2": (GPT2Config(vocab_size=32, n_embd=16, n_layer=1, n_head=2, n_positions=WINDOW), 0),
    "longspan": (LongspanConfig(vocab_size=32, dim=16, depth=1, heads=2, max_positions=WINDOW), 0),
}
PLAIN = ("gpt2", "longspan")


def settings(name: str, **more: Any) -> LongspanConfig:
    config, pad_id = ENCODERS[name]
    special = [[], []] if name in PLAIN else [[CLS], [SEP]]
    given = {"dim": 8, "depth": 1, "heads": 2, "vocab_size": 32, "pad_token_id": pad_id, "encoder": name, **more}
    return LongspanForSequenceClassification.configured(
        **{"encoder_config": described(config), "encoder_special_ids": special, **given}
    )


def loud(module: torch.nn.Module) -> None:
    torch.manual_seed(0)
    with torch.no_grad():
        for weight in module.parameters():
            weight.normal_(0, 0.3)


def encoder(name: str, **more: Any) -> WindowEncoder:
    found = WindowEncoder(
        settings(name, train_encoder=True, **more).embeddings, settings(name, train_encoder=True, **more).pad_token_id
    ).eval()
    loud(found)
    return found


def document(tokens: int, special: bool = True, seed: int = 0) -> list[int]:
    inner = np.random.default_rng((seed, tokens)).integers(4, 32, size=tokens).tolist()
    return [CLS, *inner, SEP] if special else inner


def batch(rows: list[list[int]], pad_id: int, sides: str) -> tuple[Tensor, Tensor]:
    """Pad each row on its side, "l" or "r", or "b" for both."""
    longest = max(map(len, rows)) + 3
    ids, mask = torch.full((len(rows), longest), pad_id), torch.zeros(len(rows), longest, dtype=torch.bool)
    for number, (row, side) in enumerate(zip(rows, sides, strict=True)):
        start = {"l": longest - len(row), "r": 0, "b": (longest - len(row)) // 2}[side]
        ids[number, start : start + len(row)] = torch.tensor(row, dtype=torch.long)
        mask[number, start : start + len(row)] = True
    return ids, mask


@torch.no_grad()
def one_by_one(reader: WindowEncoder, row: list[int]) -> Tensor:
    """Read each window by itself, and take each token from the one where it is farthest from the ends."""
    before, after = (each.tolist() for each in reader.special)
    head, tail = row[: len(before)] == before, bool(after) and row[-len(after) :] == after
    inner = row[len(before) if head else 0 : len(row) - (len(after) if tail else 0)]
    content = reader.window - len(before) - len(after)
    shift = content - reader.overlap
    count = 1 + max(0, -(-(len(inner) - content) // shift))
    starts = [number * (len(inner) - content) // (count - 1) if count > 1 else 0 for number in range(count)]
    read = [
        reader.model(input_ids=torch.tensor([[*before, *inner[start : start + content], *after]]))[0][0]
        for start in starts
    ]
    found = [read[0][: len(before)]] if head else []
    for token in range(len(inner)):
        contexts = []
        for start in starts:
            left = token - start if start else len(inner)
            right = start + content - 1 - token if start + content < len(inner) else len(inner)
            contexts.append(min(left, right) if start <= token < start + content else -1)
        best = max(range(count), key=lambda number: contexts[number])
        assert min(contexts[best], len(inner)) >= min(reader.overlap // 2 - 1, len(inner))
        found.append(read[best][len(before) + token - starts[best]][None])
    if tail:
        found.append(read[-1][len(read[-1]) - len(after) :])
    return torch.cat(found)


@pytest.mark.parametrize("name", ENCODERS)
def test_each_token_comes_from_the_best_window(name: str) -> None:
    reader = encoder(name)
    special = name not in PLAIN
    content = reader.window - (2 if special else 0)
    assert (reader.window, reader.overlap) == (WINDOW, content // 4)
    rows = [document(size, special) for size in (1, 4, content - 1, content, content + 1, 2 * content, 37)]
    ids, mask = batch(rows, ENCODERS[name][1], "lrbblrb")
    with torch.no_grad():
        found = reader(ids, mask)
    assert not found[~mask].any()
    for number, row in enumerate(rows):
        torch.testing.assert_close(found[number][mask[number]], one_by_one(reader, row), **CLOSE)


@pytest.mark.parametrize("name", ["bert", "roberta"])
def test_a_short_document_is_read_as_the_encoder_reads_it(name: str, tmp_path: Path) -> None:
    """Not only closely: what is computed is the same."""
    config, pad_id = ENCODERS[name]
    original = AutoModel.from_pretrained(make_encoder(tmp_path, config, pad_id=pad_id)).eval()
    reader = encoder(name)
    reader.model.load_state_dict(original.state_dict(), strict=False)
    rows = torch.tensor([document(WINDOW - 2), document(WINDOW - 2, seed=1)])
    with torch.no_grad():
        expected = original(input_ids=rows, attention_mask=torch.ones_like(rows)).last_hidden_state
        assert torch.equal(reader(rows), expected)


def test_rows_without_special_tokens_and_odd_ends() -> None:
    reader = encoder("bert")
    rows = [document(30, special=False), document(30)[:-1], document(30)[1:], [CLS, SEP], [CLS], [7]]
    ids, mask = batch(rows, 0, "lrbrlb")
    with torch.no_grad():
        found = reader(ids, mask)
    for number, row in enumerate(rows):
        torch.testing.assert_close(found[number][mask[number]], one_by_one(reader, row), **CLOSE)


def test_packed_documents_are_read_apart() -> None:
    reader = encoder("bert")
    documents = [document(20), document(3, seed=1), document(9, seed=2)]
    ids = torch.tensor([[*itertools.chain(*documents), 0, 0]])
    numbers = torch.tensor([[n for n, row in enumerate(documents) for _ in row] + [2, 2]])
    mask = torch.ones_like(ids).bool()
    mask[0, -2:] = False
    with torch.no_grad():
        found = reader(ids, mask, numbers)[0, :-2]
    torch.testing.assert_close(found, torch.cat([one_by_one(reader, row) for row in documents]), **CLOSE)


def test_tokens_that_a_task_adds_are_read_as_padding() -> None:
    reader = encoder("roberta")
    ids = torch.tensor([document(9)])
    ids[0, 4] = 32
    other = ids.clone()
    other[0, 4] = 1
    with torch.no_grad():
        assert torch.equal(reader(ids), reader(other))


def test_nothing_to_read() -> None:
    reader = encoder("bert")
    ids = torch.full((2, 5), 7)
    assert not reader(ids, torch.zeros(2, 5, dtype=torch.bool)).any()
    assert reader(torch.zeros(0, 5, dtype=torch.long)).shape == (0, 5, 16)


def test_few_windows_are_read_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = encoder("bert")
    ids, mask = batch([document(50), document(3), document(20)], 0, "lrl")
    sizes: list[torch.Size] = []
    reader.model.register_forward_pre_hook(
        lambda _, args, kwargs: sizes.append(kwargs["input_ids"].shape), with_kwargs=True
    )
    with torch.no_grad():
        whole = reader(ids, mask)
        monkeypatch.setattr("longspan.models.window_encoder.TOKENS_AT_A_TIME", 2 * WINDOW)
        sizes.clear()
        torch.testing.assert_close(reader(ids, mask), whole, **CLOSE)
    assert max(size.numel() for size in sizes) <= 2 * WINDOW
    assert len(sizes) > 4


@given(st.integers(0, 60), st.integers(1, 9), st.integers(0, 8), st.booleans(), st.booleans())
def test_windows_cover_every_token_once(tokens: int, content: int, overlap: int, head: bool, tail: bool) -> None:
    overlap = min(overlap, content - 1)
    ids = np.array([[CLS] * head + list(range(100, 100 + tokens)) + [SEP] * tail])
    special = (np.array([CLS]), np.array([SEP]))
    plan = windows(ids, None, None, content=content, overlap=overlap, special=special, pad_id=0)
    assert plan.tokens.tolist() == list(range(ids.size))
    assert np.all(np.diff(plan.windows) >= 0)
    assert np.array_equal(plan.ids[plan.windows, plan.positions], ids[0])
    assert plan.mask.sum(1).max(initial=0) <= content + 2
    assert all(row[0] == CLS and row[real][-1] == SEP for row, real in zip(plan.ids, plan.mask, strict=True))
    first = [int(row[1]) for row in plan.ids] if tokens else []
    shared = [start + content - after for start, after in itertools.pairwise(first)]
    assert all(each >= overlap for each in shared)


def test_a_frozen_encoder_stays_as_it_is() -> None:
    torch.manual_seed(0)
    model = LongspanForSequenceClassification(settings("bert", num_labels=2, dropout=0.0)).train()
    found = model.frozen_encoder
    assert found is not None
    assert not any(module.training for module in found.modules())
    assert not any(weight.requires_grad for weight in found.parameters())
    ids = torch.tensor([document(30), document(30, seed=1)])
    model(input_ids=ids, labels=torch.tensor([0, 1])).loss.backward()
    assert all(weight.grad is None for weight in found.parameters())
    assert model.longspan.embeddings.map.weight.grad.any()
    outputs = found(ids)
    assert outputs.dtype == torch.float16
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(found(ids), outputs)
    # What was kept takes the place of what is computed.
    model.eval()
    mask = torch.ones_like(ids)
    for instead in ({"inputs_embeds": outputs}, {"inputs_embeds": outputs, "input_ids": ids}):
        assert torch.equal(
            model(**instead, attention_mask=mask).logits, model(input_ids=ids, attention_mask=mask).logits
        )


def test_what_is_kept_is_finite() -> None:
    assert to_storage_type(torch.tensor([1e9, -1e9, 1.0])).tolist() == [65504.0, -65504.0, 1.0]


@pytest.mark.parametrize("recomputed", [False, True])
def test_a_trained_encoder_learns_through_its_windows(recomputed: bool) -> None:
    model = LongspanForSequenceClassification(settings("bert", num_labels=2, train_encoder=True, dropout=0.0))
    assert model.frozen_encoder is None
    loud(model)
    model.train()
    if recomputed:
        checkpointing.enable(model)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    ids = torch.tensor([document(30), document(30, seed=1)])
    model(input_ids=ids, labels=torch.tensor([0, 1])).loss.backward()
    # Positions beyond a window and the second kind of segment are the only ones that nobody reads.
    assert all(weight.grad is not None and weight.grad.any() for weight in model.parameters())


def test_padding_alone_takes_part_in_a_step() -> None:
    """In several processes one may have no row of a batch, and the others wait for gradients of all weights."""
    model = LongspanForSequenceClassification(settings("bert", num_labels=2, train_encoder=True)).train()
    ids = torch.tensor([document(5)])
    model(input_ids=ids, attention_mask=torch.zeros_like(ids), labels=torch.tensor([1])).loss.backward()
    assert all(weight.grad is not None for weight in model.parameters())


@pytest.mark.parametrize("trained", [False, True])
def test_padding_and_batch_mates_change_nothing(trained: bool) -> None:
    model = LongspanModel(settings("roberta", train_encoder=trained, dropout=0.0)).eval()
    loud(model)
    rows = [document(25), document(4), document(11)]
    ids, mask = batch(rows, 1, "lrb")
    with torch.no_grad():
        found = model(input_ids=ids, attention_mask=mask).last_hidden_state
        for number, row in enumerate(rows):
            alone = model(input_ids=torch.tensor([row])).last_hidden_state[0]
            # A number between two of float16 may fall to either, which is one in two thousand of it.
            close = CLOSE if trained else {"atol": 5e-3, "rtol": 1e-3}
            torch.testing.assert_close(found[number][mask[number]], alone, **close)
    empty = model(input_ids=ids, attention_mask=torch.zeros_like(mask)).last_hidden_state
    assert empty.isfinite().all()


def test_bfloat16() -> None:
    model = LongspanForSequenceClassification(settings("bert", num_labels=2)).eval()
    ids = torch.tensor([document(30)])
    expected = model(input_ids=ids).logits
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert model(input_ids=ids).logits.isfinite().all()
    # Eight binary digits in two small layers.
    torch.testing.assert_close(model.bfloat16()(input_ids=ids).logits.float(), expected, atol=0.05, rtol=0.05)


@pytest.mark.parametrize("name", ENCODERS)
def test_a_folder_holds_all_of_it(name: str, tmp_path: Path) -> None:
    model = LongspanForSequenceClassification(settings(name, num_labels=2)).eval()
    loud(model)
    model.save_pretrained(tmp_path)
    loaded = LongspanForSequenceClassification.from_pretrained(tmp_path)
    ids = torch.tensor([document(30)])
    assert torch.equal(loaded(input_ids=ids).logits, model(input_ids=ids).logits)
    assert loaded.frozen_encoder.fingerprint() == model.frozen_encoder.fingerprint()
    assert not any(weight.requires_grad for weight in loaded.frozen_encoder.parameters())


def test_a_fingerprint_is_that_of_weights_and_windows() -> None:
    one, other = (WindowEncoder(settings("bert").embeddings, settings("bert").pad_token_id) for _ in range(2))
    loud(one)
    loud(other)
    assert one.fingerprint() == other.fingerprint()
    with torch.no_grad():
        next(other.parameters())[0, 0] += 1e-3
    assert one.fingerprint() != other.fingerprint()
    for more in ({"encoder_window": 10}, {"encoder_overlap": 0}, {"encoder_special_ids": [[CLS], []]}):
        other = WindowEncoder(settings("bert", **more).embeddings, settings("bert", **more).pad_token_id)
        loud(other)
        assert one.fingerprint() != other.fingerprint()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            {"encoder_window": 13},
            "expected model.encoder_window to be at most 12, which the encoder 'bert' can read",
        ),
        ({"encoder_window": 2}, "and the encoder's 2 special tokens, got model.encoder_window=2; choose a larger"),
        ({"encoder_window": 6, "encoder_overlap": 4}, "more tokens than they share \\(4\\) and the encoder's 2"),
        ({"encoder_window": 0}, "encoder_window must be at least 1, got 0"),
        ({"encoder_overlap": -1}, "encoder_overlap must be at least 0, got -1"),
        (
            {"ngrams": [2]},
            "expected model.ngrams only without encoder, got ngrams=.* with encoder='bert'",
        ),
        ({"cutoffs": [8]}, "expected model.cutoffs only without encoder"),
        ({"causal": True}, "expected model.causal only without a pretrained encoder, as it sees what follows"),
        (
            {"encoder": None},
            "encoder_config needs model.encoder, got .* without it",
        ),
        (
            {"encoder_config": None},
            "expected the settings of the encoder 'bert' in encoder_config, got none",
        ),
        ({"encoder_config": {"model_type": "evil"}}, "an encoder that transformers knows, got one of type 'evil'"),
        ({"encoder_config": {"model_type": "bert", "auto_map": {}}}, "settings of a BertConfig in encoder_config, got"),
        (
            {"encoder_config": {"model_type": "bert", "attn_implementation": "a/b"}},
            "got 'attn_implementation'",
        ),
        ({"encoder_config": {"model_type": "bert", "hidden_size": "x"}}, "settings of a BertConfig in encoder_config"),
        ({"encoder_config": {"model_type": "bert", "num_hidden_layers": 10**8}}, "at most 1000 layers, got 100000000"),
        ({"encoder_config": {"model_type": "mra"}}, "expected an encoder of text, got a model of type 'mra'"),
        (
            {"encoder_config": {"model_type": "longspan", "embeddings": {"kind": "encoder", "encoder": "x"}}},
            "got a longspan model that has one itself",
        ),
    ],
)
def test_mistakes(more: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        LongspanModel(settings("bert", **more))


def test_what_does_not_read_text_is_no_encoder() -> None:
    with pytest.raises(UserError, match="an encoder alone, got a model of type 't5', which has a decoder too"):
        described(T5Config())
    with pytest.raises(UserError, match="expected an encoder of text, got a model of type 'vit'"):
        described(ViTConfig())
    with pytest.raises(UserError, match="for which padding changes nothing, got a model of type 'convbert', whose"):
        described(ConvBertConfig())
    with pytest.raises(UserError, match="takes input_ids and attention_mask, got a model of type 'canine'"):
        described(CanineConfig())
    reformer = {"model_type": "reformer", "hidden_size": 12}
    with pytest.raises(UserError, match="an encoder that can be built, got the settings of 'bert', which cannot"):
        LongspanModel(settings("bert", encoder_config=reformer))
    xlnet = {"model_type": "xlnet", "vocab_size": 32, "d_model": 16, "n_head": 2, "n_layer": 1, "d_inner": 16}
    with pytest.raises(UserError, match="which names no longest input, got none; set model"):
        LongspanModel(settings("bert", encoder_config=xlnet))


@pytest.mark.parametrize("name", ENCODERS)
def test_what_is_described_is_the_same_configuration(name: str) -> None:
    config = ENCODERS[name][0]
    again = configured(described(config))
    assert described(again) == described(config)
    assert type(again) is type(config)


def test_heads_that_predict_tokens_have_none() -> None:
    with pytest.raises(
        UserError,
        match="LongspanForMaskedLM expected embeddings of tokens of its own, got a model with embeddings 'encoder'",
    ):
        LongspanForMaskedLM(settings("bert"))
    with pytest.raises(UserError, match="expected a causal model, got causal=False"):
        LongspanForCausalLM(settings("bert"))
    with pytest.raises(UserError, match="resize_token_embeddings expected embeddings of tokens of its own, got"):
        LongspanModel(settings("bert")).resize_token_embeddings(40)
