"""Losses of whole documents: against one forward pass over each, and against windows fed one by one."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from longspan import mixers
from longspan.errors import UserError
from longspan.mixers.relative import Relative
from longspan.models import LongspanForCausalLM
from longspan.tasks.language_modelling.likelihood import set_attention_length, token_losses

VOCABULARY, END = 13, 2
CAUSAL = [name for name in mixers.names() if mixers.describe(name).causal and mixers.describe(name).streaming]
# Losses are handed out in float32: half a unit in the last place of numbers up to 8 nats.
TOLERANCE = 3e-7


def model(name: str = "relative", dtype: torch.dtype = torch.float64, **settings: Any) -> LongspanForCausalLM:
    torch.manual_seed(0)
    config = LongspanForCausalLM.configured(
        vocab_size=VOCABULARY,
        dim=16,
        depth=2,
        heads=2,
        mixers=[name],
        causal=True,
        # So large that what comes before matters to the losses.
        initializer_range=0.3,
        eos_token_id=END,
        **settings,
    )
    return LongspanForCausalLM(config).to(dtype).eval()


def documents(*lengths: int) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [random.integers(3, VOCABULARY, length, dtype=np.int32) for length in lengths]


@torch.no_grad()
def whole(lm: LongspanForCausalLM, tokens: np.ndarray) -> np.ndarray:
    """The losses of one document from a single forward pass over all of it."""
    sequence = torch.tensor([END, *tokens.tolist(), END])
    logits = lm(input_ids=sequence[None, :-1]).logits[0]
    return -logits.log_softmax(-1).gather(1, sequence[1:, None])[:, 0].numpy()


def same(found: list[np.ndarray], expected: list[np.ndarray], tolerance: float = TOLERANCE) -> None:
    assert [row.shape for row in found] == [row.shape for row in expected]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("name", CAUSAL)
def test_carried_states_give_the_losses_of_the_whole_document(name: str, rows: int) -> None:
    """Segments that end in the middle of documents, at their ends, and documents without any token."""
    lm, texts = model(name), documents(5, 40, 0, 7, 23, 24)
    found = token_losses(lm, texts, rows=rows, segment_length=8)
    assert all(row.dtype == np.float32 for row in found)
    same(found, [whole(lm, tokens) for tokens in texts])


@pytest.mark.parametrize("settings", [{"cutoffs": [5, 9], "div_val": 2}, {"position": "none", "embedding_dim": 8}])
def test_losses_are_in_token_order(settings: dict[str, Any]) -> None:
    """Known failure elsewhere: per-token losses of an adaptive softmax are returned in cluster order."""
    lm, texts = model("additive", **settings), documents(11, 30)
    same(token_losses(lm, texts, rows=2, segment_length=7), [whole(lm, tokens) for tokens in texts])


@pytest.mark.slow
@pytest.mark.parametrize("context", ["carried", "sliding"])
def test_losses_do_not_depend_on_who_shares_the_batch(context: str) -> None:
    lm = model("relative", torch.float32, mixer_options={"relative": {"memory": 6}})
    texts = documents(30, 3, 18, 0, 9, 31, 2)
    stride = 3 if context == "sliding" else 0
    alone = token_losses(lm, texts, rows=1, segment_length=5, context=context, stride=stride)
    for rows in (2, 3, 50):
        # Products of other shapes round otherwise.
        same(token_losses(lm, texts, rows=rows, segment_length=5, context=context, stride=stride), alone, 1e-5)
    turned = token_losses(lm, texts[::-1], rows=3, segment_length=5, context=context, stride=stride)
    same(turned[::-1], alone, 1e-5)


@pytest.mark.parametrize("name", ["softmax", "local"])
def test_a_window_at_a_time(name: str) -> None:
    """`stride=1` is what feeding the last `window` tokens before each target gives."""
    lm, texts, window = model(name), documents(3, 20, 6), 6
    expected = []
    for tokens in texts:
        sequence = [END, *tokens.tolist(), END]
        row = []
        for at in range(1, len(sequence)):
            seen = torch.tensor([sequence[max(0, at - window) : at]])
            with torch.no_grad():
                row.append(-lm(input_ids=seen).logits[0, -1].log_softmax(-1)[sequence[at]].item())
        expected.append(np.array(row))
    same(token_losses(lm, texts, rows=4, segment_length=4, context="sliding", window=window, stride=1), expected)


@pytest.mark.slow
@pytest.mark.parametrize(("window", "stride"), [(6, 6), (6, 4), (5, 0), (100, 0)])
def test_every_target_comes_from_the_window_it_is_new_in(window: int, stride: int) -> None:
    lm, texts = model("softmax"), documents(0, 5, 6, 7, 29)
    found = token_losses(lm, texts, rows=3, segment_length=4, context="sliding", window=window, stride=stride)
    step = stride or math.ceil(window / 2)
    for tokens, row in zip(texts, found, strict=True):
        for number, loss in enumerate(row):
            # The first window whose targets reach this one.
            start = max(0, math.ceil((number + 1 - window) / step)) * step
            sequence = torch.tensor([END, *tokens.tolist(), END])
            with torch.no_grad():
                logits = lm(input_ids=sequence[None, start : number + 1]).logits[0, -1]
            assert loss == pytest.approx(-logits.log_softmax(-1)[sequence[number + 1]].item(), rel=TOLERANCE)


def test_windows_default_to_segments() -> None:
    lm, texts = model("softmax"), documents(30)
    given = token_losses(lm, texts, rows=2, segment_length=8, context="sliding", window=8, stride=4)
    same(token_losses(lm, texts, rows=2, segment_length=8, context="sliding"), given)


def test_attention_reaches_further_than_in_training() -> None:
    lm, texts = model(mixer_options={"relative": {"memory": 4}}), documents(50)
    exact = whole(lm, texts[0])
    assert np.abs(token_losses(lm, texts, rows=1, segment_length=5)[0] - exact).max() > 1e-3
    set_attention_length(lm, 60)
    same(token_losses(lm, texts, rows=1, segment_length=5), [exact])
    set_attention_length(lm, 0)
    assert np.abs(token_losses(lm, texts, rows=1, segment_length=5)[0] - exact).max() > 1e-3


def test_attention_length_with_same_length() -> None:
    lm = model(mixer_options={"relative": {"memory": 4, "same_length": True}})
    longer = model(mixer_options={"relative": {"memory": 9, "same_length": True}})
    set_attention_length(lm, 9)
    texts = documents(40)
    same(token_losses(lm, texts, rows=1, segment_length=5), [whole(longer, texts[0])])
    assert {(mixer.memory, mixer.window) for mixer in lm.modules() if isinstance(mixer, Relative)} == {(9, 9)}


def test_a_model_in_training_is_left_as_it_was() -> None:
    lm, texts = model("additive", dropout=0.5), documents(20)
    expected = [whole(lm, tokens) for tokens in texts]
    lm.train()
    same(token_losses(lm, texts, rows=1, segment_length=8), expected)
    assert lm.training
    assert all(module.training for module in lm.modules())
    assert all(parameter.grad is None for parameter in lm.parameters())
    # What was made on the way is fit for training.
    lm(input_ids=torch.tensor([[END, 3, 4]]), labels=torch.tensor([[END, 3, 4]])).loss.backward()


def test_memory_does_not_grow_with_the_document(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model is given segments and states of one size, however long the document is."""
    lm = model("relative", torch.float32, mixer_options={"relative": {"memory": 6}})
    usual, sizes = LongspanForCausalLM.forward, []

    def forward(self: LongspanForCausalLM, **inputs: Any) -> Any:
        output = usual(self, **inputs)
        logits = 0 if output.logits is None else output.logits.numel()
        sizes.append((inputs["input_ids"].numel(), logits, output.past_key_values.nbytes))
        return output

    monkeypatch.setattr(LongspanForCausalLM, "forward", forward)
    token_losses(lm, documents(400), rows=4, segment_length=8)
    assert len(sizes) == math.ceil(401 / 8)
    assert len(set(sizes[2:-1])) == 1
    assert sizes[2][0] == 8


def test_no_documents() -> None:
    assert token_losses(model(), [], rows=2, segment_length=4) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"context": "sldiing"}, r"no context 'sldiing'; did you mean 'sliding'\?"),
        ({"rows": 0}, "rows must be at least 1, got 0"),
        ({"segment_length": 0}, "segment_length must be at least 1"),
        ({"context": "sliding", "window": -1}, "window must be at least 0"),
        ({"context": "sliding", "window": 4, "stride": 5}, "a stride of at most the window, 4, got 5; make it smaller"),
        ({"window": 4}, "expected context='sliding' with window=4 and stride=0, got 'carried'"),
    ],
)
def test_what_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        token_losses(model(), documents(3), **{"rows": 1, "segment_length": 4, **options})


def test_a_model_without_an_end_or_a_memory() -> None:
    lm = model("additive")
    with pytest.raises(UserError, match="mixers that have a memory"):
        set_attention_length(lm, 5)
    with pytest.raises(UserError, match="0 or more, got -1"):
        set_attention_length(lm, -1)
    lm.config.eos_token_id = None
    with pytest.raises(UserError, match="has an eos_token_id, which ends documents"):
        token_losses(lm, documents(3), rows=1, segment_length=4)
