"""`generate` with states against recomputing the whole prefix for each token, for every causal mixer and a hybrid."""

from typing import Any

import pytest
import torch
from torch import Tensor

from longspan import LongspanForCausalLM, mixers
from longspan.models import MixerStates

CAUSAL = [name for name in mixers.names() if mixers.describe(name).causal]
OPTIONS = {"local": {"radius": 4}, "relative": {"memory": 64}}
every = pytest.mark.parametrize("names", [*([name] for name in CAUSAL), ["local", "additive"]], ids="-".join)
# Their state does not grow: what a window or a memory holds is bounded too.
CONSTANT = [name for name in CAUSAL if name != "softmax"]
HOW: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampling": {"do_sample": True, "top_k": 0},
    "beam": {"num_beams": 3, "num_return_sequences": 2},
}


def build(names: list[str], **changes: Any) -> LongspanForCausalLM:
    """A model in float64, whose rounding decides no choice between tokens."""
    torch.manual_seed(3)
    settings: dict[str, Any] = {"vocab_size": 23, "dim": 16, "heads": 2, "depth": 2, "mixers": names, "causal": True}
    settings |= {"mixer_options": {name: OPTIONS[name] for name in names if name in OPTIONS}, "initializer_range": 0.3}
    return LongspanForCausalLM(LongspanForCausalLM.configured(**settings | changes)).double().eval()


def prompts(b: int = 2, t: int = 6) -> Tensor:
    return torch.randint(1, 23, (b, t), generator=torch.Generator().manual_seed(b * 100 + t))


def generate(model: LongspanForCausalLM, ids: Tensor, tokens: int = 10, **options: Any) -> Any:
    torch.manual_seed(5)
    return model.generate(ids, max_new_tokens=tokens, **options)


def recomputed(model: LongspanForCausalLM, ids: Tensor, tokens: int, sample: bool = False) -> Tensor:
    """Choose token after token from the last logits of a forward pass over everything before it."""
    torch.manual_seed(5)
    for _ in range(tokens):
        logits = model(ids).logits[:, -1].float()
        chosen = torch.multinomial(logits.softmax(-1), 1) if sample else logits.argmax(-1, keepdim=True)
        ids = torch.cat((ids, chosen), 1)
    return ids


@pytest.mark.slow
@every
@torch.inference_mode()
def test_states_change_nothing_about_what_is_generated(names: list[str]) -> None:
    model, ids = build(names), prompts()
    assert torch.equal(generate(model, ids), recomputed(model, ids, 10))
    assert torch.equal(generate(model, ids, do_sample=True, top_k=0), recomputed(model, ids, 10, sample=True))
    beams = generate(model, ids, **HOW["beam"])
    assert torch.equal(beams, generate(model, ids, **HOW["beam"], use_cache=False))


@pytest.mark.slow
@every
@torch.inference_mode()
def test_rows_padded_on_the_left_continue_as_if_alone(names: list[str]) -> None:
    model = build(names)
    rows = [prompts(1, length) for length in (7, 3, 5)]
    ids, mask = torch.zeros(3, 7, dtype=torch.long), torch.zeros(3, 7, dtype=torch.long)
    for number, row in enumerate(rows):
        ids[number, 7 - row.shape[1] :] = row
        mask[number, 7 - row.shape[1] :] = 1
    for name in ("greedy", "beam"):
        each = generate(model, ids, attention_mask=mask, **HOW[name]).unflatten(0, (3, -1))
        for number, row in enumerate(rows):
            alone = generate(model, row, **HOW[name])
            assert torch.equal(each[number, :, 7:], alone[:, row.shape[1] :])
    sampled = generate(model, ids, attention_mask=mask, **HOW["sampling"])
    assert torch.equal(sampled, generate(model, ids, attention_mask=mask, use_cache=False, **HOW["sampling"]))


@pytest.mark.slow
@pytest.mark.parametrize("position", ["sinusoidal", "learned", "fourier", "none"])
@pytest.mark.parametrize("combine", ["add", "concat"])
@torch.inference_mode()
def test_absolute_positions_go_on(position: str, combine: str) -> None:
    model = build(["additive"], position=position, position_combine=combine, max_positions=32)
    ids, mask = prompts(2, 20), torch.ones(2, 20, dtype=torch.long)
    mask[1, :4] = 0
    expected = model(ids, attention_mask=mask).logits
    for size in (1, 3, 20):
        states, parts = None, []
        for part, part_mask in zip(ids.split(size, 1), mask.split(size, 1), strict=True):
            output = model(part, attention_mask=part_mask, past_key_values=states, use_cache=True)
            states = output.past_key_values
            parts.append(output.logits)
        # The learned scale is in float64, the sinusoids themselves in float32.
        torch.testing.assert_close(torch.cat(parts, 1)[mask.bool()], expected[mask.bool()], rtol=1e-5, atol=1e-5)
    assert torch.equal(generate(model, ids), generate(model, ids, use_cache=False))


@pytest.mark.slow
@pytest.mark.parametrize("name", CONSTANT)
@torch.inference_mode()
def test_a_constant_state_stays_as_large_as_it_is(name: str) -> None:
    changes: dict[str, Any] = {"relative": {"memory": 8}}.get(name, OPTIONS.get(name, {}))
    model = build([name], mixer_options={name: changes}, depth=1)
    sizes = []
    for seen in (10, 200):
        # The last token is returned and not fed.
        output = generate(model, prompts(1, 10), seen - 9, return_dict_in_generate=True)
        assert output.past_key_values.get_seq_length() == seen
        sizes.append(output.past_key_values.nbytes)
    assert sizes[0] == sizes[1]


@torch.inference_mode()
def test_generation_goes_on_from_states() -> None:
    model, ids = build(["additive", "softmax"]), prompts(2, 8)
    whole = generate(model, ids, 10)
    states = model(whole[:, :11], use_cache=True).past_key_values
    mask = torch.ones(2, 13)
    for _ in range(2):
        # The given states stay as they are, so the same ones serve again.
        assert torch.equal(generate(model, whole[:, :13], 5, past_key_values=states), whole)
        new = generate(model, whole[:, 11:13], 5, attention_mask=mask, past_key_values=states)
        assert torch.equal(new, whole[:, 11:])
        assert torch.equal(generate(model, whole[:, :13], 5, cache=states), whole)
    assert states.get_seq_length() == 11


@torch.inference_mode()
def test_generation_is_guided() -> None:
    """transformers then calls `forward` itself, with its own name for states."""
    model, ids = build(["additive"]), prompts(2, 8)
    options: dict[str, Any] = {"guidance_scale": 1.5, "negative_prompt_ids": prompts(2, 4)}
    assert torch.equal(generate(model, ids, **options), generate(model, ids, use_cache=False, **options))


@torch.inference_mode()
def test_a_long_prompt_is_read_in_parts() -> None:
    model, ids = build(["additive", "softmax"]), prompts(2, 20)
    mask = torch.ones_like(ids)
    mask[0, :6] = 0
    states = model.longspan.init_states(2)
    parts = generate(model, ids, attention_mask=mask, past_key_values=states, prefill_chunk_size=7)
    assert torch.equal(parts, generate(model, ids, attention_mask=mask))


@torch.inference_mode()
def test_generates_from_embeddings() -> None:
    model, ids = build(["additive"]), prompts()
    vectors = model.get_input_embeddings()(ids)
    new = model.generate(inputs_embeds=vectors, max_new_tokens=9)
    assert torch.equal(new, generate(model, ids, 9)[:, 6:])


@torch.inference_mode()
def test_one_token_of_a_padded_batch_is_stepped_without_a_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(["additive"], depth=1)
    mixer: Any = model.longspan.backbone.layers[0].mixer
    masks, step = [], mixer.step

    def watched(x: Tensor, state: Any, mask: Tensor | None = None) -> Any:
        masks.append(mask)
        return step(x, state, mask)

    monkeypatch.setattr(mixer, "step", watched)
    generate(model, prompts(2, 4), 3, attention_mask=torch.tensor([[0, 1, 1, 1], [1, 1, 1, 1]]))
    assert masks[0] is not None
    assert masks[1:] == [None, None]


@torch.inference_mode()
def test_adaptive_softmax_generates() -> None:
    model = build(["relative"], cutoffs=[5, 12], div_val=2, position="none")
    for options in HOW.values():
        assert torch.equal(
            generate(model, prompts(), **options), generate(model, prompts(), use_cache=False, **options)
        )


@torch.inference_mode()
def test_generate_gives_states_back() -> None:
    output = generate(build(["additive"]), prompts(), 3, return_dict_in_generate=True, num_beams=2)
    assert isinstance(output.past_key_values, MixerStates)
    assert output.past_key_values.batch_size == 4
