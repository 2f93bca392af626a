"""Assisted decoding and prompt lookup: token for token what is generated without them, in fewer passes."""

import copy
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from torch.utils._pytree import tree_leaves
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from longspan import LongspanForCausalLM, UserError, mixers
from longspan.models import MixerStates
from longspan.models.backbone import Backbone
from longspan.models.generation import RewindableStates

CAUSAL = [name for name in mixers.names() if mixers.describe(name).causal]
OPTIONS: dict[str, Any] = {"local": {"radius": 4}, "relative": {"memory": 7, "same_length": True}}
every = pytest.mark.parametrize("names", [*([name] for name in CAUSAL), ["local", "additive"]], ids="-".join)
# transformers passes both itself, from one `generate` to that of the assistant.
pytestmark = pytest.mark.filterwarnings("ignore:Passing `generation_config` together with")


def build(names: list[str], **changes: Any) -> LongspanForCausalLM:
    """A model in float64, whose rounding decides no choice between tokens."""
    torch.manual_seed(3)
    settings: dict[str, Any] = {"vocab_size": 23, "dim": 16, "heads": 2, "depth": 2, "mixers": names, "causal": True}
    settings |= {"mixer_options": {name: OPTIONS[name] for name in names if name in OPTIONS}, "initializer_range": 0.3}
    model = LongspanForCausalLM(LongspanForCausalLM.configured(**settings | changes))
    if model.longspan.embeddings.ngrams is not None:
        # New ones are zero, as none has been met.
        torch.nn.init.normal_(model.longspan.embeddings.ngrams.weight[1:])
    return model.double().eval()


def small(**changes: Any) -> LongspanForCausalLM:
    """An assistant that guesses right now and then."""
    model = build(["additive"], dim=8, depth=1, **changes)
    model.generation_config.num_assistant_tokens = 4
    return model


def prompt(length: int, repeated: int = 1) -> Tensor:
    ids = torch.randint(1, 23, (1, length), generator=torch.Generator().manual_seed(length))
    return ids.repeat(1, repeated)


def generate(model: Any, ids: Tensor, tokens: int = 14, **options: Any) -> Any:
    torch.manual_seed(5)
    return model.generate(ids, max_new_tokens=tokens, do_sample=options.pop("do_sample", False), **options)


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many positions each pass through a backbone read."""
    seen: list[int] = []
    step = Backbone.step

    def watched(self: Backbone, x: Tensor, *arguments: Any, **options: Any) -> Any:
        seen.append(x.shape[1])
        return step(self, x, *arguments, **options)

    monkeypatch.setattr(Backbone, "step", watched)
    return seen


@pytest.mark.slow
@every
@torch.inference_mode()
def test_candidates_change_nothing_about_what_is_generated(names: list[str]) -> None:
    model = build(names)
    # One token, and so many that the prompt is read in two parts.
    for ids in (prompt(1), prompt(9, 9)):
        expected = generate(model, ids)
        # Few, and more than are remembered in one piece.
        for count in (3, 50):
            assert torch.equal(generate(model, ids, prompt_lookup_num_tokens=count), expected)
        assert torch.equal(generate(model, ids, assistant_model=small()), expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"cutoffs": [5, 12], "div_val": 2},
        {"share_layers": True, "depth": 4},
        {"position": "learned", "max_positions": 21},
        {"norm": "post", "position_combine": "concat"},
        {"short_convolution": 4, "ngrams": [2, 5], "ngram_buckets": 200},
    ],
)
@torch.inference_mode()
def test_every_kind_of_model_takes_candidates(changes: dict[str, Any]) -> None:
    model, ids = build(["additive", "softmax"], **changes), prompt(8)
    expected = generate(model, ids)
    assert torch.equal(generate(model, ids, prompt_lookup_num_tokens=4), expected)
    assert torch.equal(generate(model, ids, assistant_model=small()), expected)


@torch.inference_mode()
def test_padding_in_front_stays_padding() -> None:
    model = build(["additive", "relative"])
    ids = torch.cat((torch.zeros(1, 3, dtype=torch.long), prompt(6)), 1)
    mask = (ids != 0).long()
    expected = generate(model, ids, attention_mask=mask)
    assert torch.equal(expected[:, 3:], generate(model, ids[:, 3:]))
    assert torch.equal(generate(model, ids, attention_mask=mask, prompt_lookup_num_tokens=4), expected)
    assert torch.equal(generate(model, ids, attention_mask=mask, assistant_model=small()), expected)


@pytest.mark.slow
@torch.inference_mode()
def test_sampling_takes_candidates() -> None:
    model, ids = build(["additive"]), prompt(6)
    for helper in (model, small()):
        assert generate(model, ids, assistant_model=helper, do_sample=True).shape == (1, 20)
    greedy = generate(model, ids)
    for assistance in ({"prompt_lookup_num_tokens": 4}, {"assistant_model": small()}):
        assert torch.equal(generate(model, ids, do_sample=True, top_k=1, **assistance), greedy)


@torch.inference_mode()
def test_all_that_generate_returns_is_the_same() -> None:
    model, ids = build(["additive", "softmax"]), prompt(6, 12)
    what = {"return_dict_in_generate": True, "output_logits": True, "output_hidden_states": True}
    plain, assisted = generate(model, ids, **what), generate(model, ids, prompt_lookup_num_tokens=4, **what)
    assert torch.equal(plain.sequences, assisted.sequences)
    assert len(plain.logits) == len(assisted.logits)
    for one, other in zip(plain.logits, assisted.logits, strict=True):
        torch.testing.assert_close(one, other)
    for one, other in zip(plain.hidden_states, assisted.hidden_states, strict=True):
        for layer, other_layer in zip(one, other, strict=True):
            torch.testing.assert_close(layer, other_layer)
    before, after = plain.past_key_values, assisted.past_key_values
    assert before.get_seq_length() == after.get_seq_length() == 72 + 13
    assert torch.equal(before.seen, after.seen)
    for state, other_state in zip(tree_leaves(before.layers), tree_leaves(after.layers), strict=True):
        # Sinusoids are float32 inside; everything else is float64.
        torch.testing.assert_close(state, other_state, rtol=1e-6, atol=1e-6)
    more = generate(model, plain.sequences, 7, past_key_values=before)
    assert torch.equal(generate(model, plain.sequences, 7, past_key_values=after), more)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "most"), [("recurrent", 10), ("additive", 40), ("softmax", 40)])
@torch.inference_mode()
def test_a_text_that_repeats_itself_takes_fewer_passes(name: str, most: int, passes: list[int]) -> None:
    model = build([name])
    # What it says already goes round in circles.
    ids = generate(model, prompt(4), 60)
    passes.clear()
    expected = generate(model, ids, 60)
    assert len(passes) == 60
    passes.clear()
    assert torch.equal(generate(model, ids, 60, prompt_lookup_num_tokens=8), expected)
    assert len(passes) <= most


@pytest.mark.slow
@torch.inference_mode()
def test_wrong_candidates_take_hardly_more_passes(passes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = build(["additive"]), prompt(6)
    expected = generate(model, ids, 60)
    calls = []
    forward = model.forward

    def watched(*arguments: Any, **options: Any) -> Any:
        calls.append(1)
        return forward(*arguments, **options)

    monkeypatch.setattr(model, "forward", watched)
    passes.clear()
    assert torch.equal(generate(model, ids, 60, assistant_model=gpt2()), expected)
    assert len(calls) > 50
    # One for each call, and one more whenever more than 16 positions would be read again.
    assert len(passes) <= len(calls) * 17 / 16 + 1
    assert max(passes) <= 6 + 16 + 5


def gpt2() -> GPT2LMHeadModel:
    """A model of transformers, untrained."""
    torch.manual_seed(3)
    shape = GPT2Config(vocab_size=23, n_embd=16, n_layer=1, n_head=2, n_positions=80, initializer_range=0.3)
    model = GPT2LMHeadModel(shape).double().eval()
    model.generation_config.eos_token_id = model.generation_config.bos_token_id = None
    model.generation_config.num_assistant_tokens = 4
    return model


def tokenizer(words: list[str]) -> PreTrainedTokenizerFast:
    ids = {"[PAD]": 0, "[UNK]": 1} | {word: number for number, word in enumerate(words, 2)}
    made = Tokenizer(models.WordLevel(ids, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="[PAD]", unk_token="[UNK]")


@torch.inference_mode()
def test_the_assistant_may_have_other_tokens() -> None:
    words = [f"w{number}" for number in range(21)]
    model, ids = build(["additive"]), prompt(12).clamp_min(2)
    helper = small(vocab_size=31)
    both = {"tokenizer": tokenizer(words), "assistant_tokenizer": tokenizer([*words[::-1], *map(str, range(8))])}
    expected = generate(model, ids)
    assert torch.equal(generate(model, ids, assistant_model=helper, **both), expected)


@torch.inference_mode()
def test_models_of_transformers_assist_and_are_assisted() -> None:
    model, other, ids = build(["additive"]), gpt2(), prompt(6)
    assert torch.equal(generate(model, ids, assistant_model=other), generate(model, ids))
    assert torch.equal(generate(other, ids, assistant_model=model), generate(other, ids))


@torch.inference_mode()
def test_what_cannot_be_is_refused() -> None:
    model, ids = build(["additive"]), prompt(6)
    states = model(ids, use_cache=True).past_key_values
    with pytest.raises(UserError, match="from the start of a sequence, got past_key_values; leave them out"):
        generate(model, torch.cat((ids, ids), 1), prompt_lookup_num_tokens=3, past_key_values=states)
    with pytest.raises(UserError, match="another model as the assistant, got assistant_early_exit"):
        generate(model, ids, assistant_early_exit=1)
    with pytest.raises(ValueError, match="batch_size = 1"):
        generate(model, ids.repeat(2, 1), prompt_lookup_num_tokens=3)
    with pytest.raises((ValueError, RuntimeError), match="cache"):
        generate(model, ids, prompt_lookup_num_tokens=3, use_cache=False)


@torch.inference_mode()
def test_segments_that_decide_what_is_forgotten_are_refused() -> None:
    model, ids = build(["additive", "relative"], mixer_options={"relative": {"memory": 20}}), prompt(6)
    message = "at most 21 tokens, as what a mixer of this model forgets .* got 22; .* same_length=True"
    with pytest.raises(UserError, match=message):
        generate(model, ids, 16, prompt_lookup_num_tokens=3)
    assert torch.equal(generate(model, ids, 15, prompt_lookup_num_tokens=3), generate(model, ids, 15))
    # What the assistant forgets is its own affair.
    steady = build(["additive"])
    assert torch.equal(generate(steady, ids, assistant_model=model), generate(steady, ids))


def after(model: LongspanForCausalLM, ids: Tensor, states: MixerStates | None = None) -> Any:
    states = (
        RewindableStates(model.longspan.init_states(len(ids)), model.longspan.backbone) if states is None else states
    )
    return model(ids, past_key_values=states).past_key_values


@pytest.mark.slow
@every
@torch.inference_mode()
def test_positions_taken_back_were_never_there(names: list[str]) -> None:
    model = build(names)
    ids = torch.randint(1, 23, (3, 30), generator=torch.Generator().manual_seed(1))
    mask = torch.rand(3, 30, generator=torch.Generator().manual_seed(2)) > 0.3
    for sizes, gone in (([20], 1), ([20], 20), ([12, 1, 1, 6], 7), ([5, 5, 5, 5], 15), ([17, 3], 3)):
        states: Any = RewindableStates(model.longspan.init_states(3), model.longspan.backbone)
        for part, part_mask in zip(ids[:, :20].split(sizes, 1), mask[:, :20].split(sizes, 1), strict=True):
            states = model(part, part_mask, past_key_values=states).past_key_values
        states.crop(-gone)
        rest = 20 - gone
        assert states.get_seq_length() == rest
        assert torch.equal(states.seen, mask[:, :rest].sum(1))
        # Taken back in two goes, and read either together with what follows or at once.
        again = copy.copy(states)
        assert len(again.layers) == 2
        for kept in (states, again):
            if rest > 2:
                kept.crop(-2)
                kept = model(ids[:, rest - 2 : rest], mask[:, rest - 2 : rest], past_key_values=kept).past_key_values
            output = model(ids[:, rest:], mask[:, rest:], past_key_values=kept)
            expected = model(ids, mask).logits[:, rest:]
            torch.testing.assert_close(output.logits[mask[:, rest:]], expected[mask[:, rest:]], rtol=1e-6, atol=1e-6)


@torch.inference_mode()
def test_states_taken_back_are_ordinary_states() -> None:
    model = build(["additive", "softmax"])
    ids = torch.randint(1, 23, (3, 9), generator=torch.Generator().manual_seed(1))
    expected = model(ids[:, :6], use_cache=True).past_key_values

    def cropped() -> Any:
        states = after(model, ids)
        states.crop(-3)
        return states

    def agree(one: MixerStates, other: MixerStates) -> None:
        for name, tensor in other.tensors().items():
            torch.testing.assert_close(one.tensors()[name], tensor, rtol=1e-6, atol=1e-6)

    agree(cropped(), expected)
    agree(copy.deepcopy(cropped()), expected)
    agree(cropped().detach(), expected)
    rows = torch.tensor([True, False, True])
    agree(cropped().reset(rows), expected.reset(rows))
    assert cropped().nbytes == expected.nbytes
    for states in (moved := cropped(), expected):
        states.reorder_cache(torch.tensor([2, 0, 0]))
        states.batch_repeat_interleave(2)
    agree(moved, expected)
    # Of these rows, nothing is remembered.
    with pytest.raises(UserError, match="take back at most the 0 positions that these states remember, got 1; start"):
        moved.crop(-1)


@torch.inference_mode()
def test_little_is_remembered() -> None:
    model: Any = build(["softmax"])
    states = after(model, prompt(100))
    assert [piece.positions for piece in states._pieces] == [68, 32]
    for number in range(40):
        states = after(model, prompt(1), states)
        states.crop(0)
        assert sum(piece.positions for piece in states._pieces) <= 68 + 32 or not number
        assert len(states._pieces) <= 3
    # And enough.
    assert sum(piece.positions for piece in states._pieces) >= 32
    for count in (-100, 3):
        with pytest.raises(UserError, match=r"take back at most the \d\d positions .* got (100|-3); start"):
            states.crop(count)
