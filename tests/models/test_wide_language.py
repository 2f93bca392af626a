"""Language models whose network is mixed with counted n-grams and a cache: against loops, and what states remember."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from longspan import LongspanForCausalLM
from longspan.errors import UserError
from longspan.models.generation import RewindableStates
from longspan.models.wide.language import SHARPNESSES
from longspan.tasks.language_modelling.counting import Counts
from longspan.tasks.language_modelling.parts import LOSSES, losses_without_parts
from longspan.tasks.language_modelling.trainer import fit_gate

END, VOCABULARY, CACHE = 0, 12, 7


def build(mixers=("additive",), cache=CACHE, order=3, **settings) -> LongspanForCausalLM:
    """A model of random weights with counts of random documents, and a gate that is fitted to nothing in particular."""
    torch.manual_seed(0)
    random = np.random.default_rng(0)
    documents = [random.integers(1, 6, size) for size in (80, 1, 40)]
    counts = Counts(documents, end=END, vocab_size=VOCABULARY).model(order)
    given = {"dim": 16, "depth": 1, "heads": 2, "mixers": list(mixers), "wide": True, "wide_cache": cache, **settings}
    config = LongspanForCausalLM.configured(
        **given, causal=True, vocab_size=VOCABULARY, wide_sizes=list(counts.sizes), pad_token_id=None, eos_token_id=END
    )
    model = LongspanForCausalLM(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.3 * torch.randn(weight.shape))
    wide = model.wide
    assert wide is not None
    wide.counts.load_state_dict(counts.state_dict())
    evidence = torch.randn(60, wide.evidence_size)
    fit_gate(wide.gate, evidence, torch.randn(60, len(wide.parts)).log_softmax(1), wide.dim)
    return model


IDS = torch.tensor([[END, 1, 2, 3, 1, 2, 4, 5, 1, 2, 3, 1, 4, 2, 11, 2, 3, 1]])


@torch.no_grad()
def written_out(model: LongspanForCausalLM, ids: list[int]) -> torch.Tensor:
    """Return the probabilities (t, v) after each token of a document, from the equations."""
    wide = model.wide
    assert wide is not None
    row = torch.tensor([ids])
    hidden = model.transform(model.longspan(row).last_hidden_state)[0].double()
    network = model.lm_head(hidden.float()).double().softmax(1)
    unit = hidden / hidden.norm(dim=1, keepdim=True)
    contexts = wide.counts.contexts(row)[0]
    found = []
    for i in range(len(ids)):
        counted = [wide.counts.probabilities(contexts[i], torch.tensor(w)).double() for w in range(VOCABULARY)]
        parts, places = [network[i], torch.stack(counted)], range(max(0, i - wide.cache), i)
        for sharpness in SHARPNESSES if wide.cache else ():
            cache = torch.zeros(VOCABULARY, dtype=torch.float64)
            for j in places:
                cache[ids[j + 1]] += (sharpness * unit[i] @ unit[j]).exp()
            parts.append(cache / cache.sum() if places else cache)
        best = max((float(unit[i] @ unit[j]) for j in places), default=0.0)
        lookup = [torch.tensor([np.log(1 + len(places)), best])] if wide.cache else []
        centred = hidden[i] - hidden[i].mean()
        outputs = centred / (centred.square().mean() + 1e-5).sqrt()
        evidence = torch.cat((*lookup, wide.counts.reliability(contexts[i]).double(), outputs))
        weights = wide.gate(evidence.float()).double().exp()
        found.append(sum(weight * part for weight, part in zip(weights, parts, strict=True)))
    return torch.stack(found)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"cache": 0}, {"order": 1}, {"embedding_dim": 8}, {"order": 2, "cache": 40}])
def test_it_is_the_formula(settings):
    model = build(**settings)
    expected = written_out(model, IDS[0].tolist())
    torch.testing.assert_close(expected.sum(1), torch.ones(18, dtype=torch.float64))
    with torch.no_grad():
        output = model(IDS, labels=IDS, logits_to_keep=0)
    # The reference reads the float32 outputs of the network.
    torch.testing.assert_close(output.logits[0].double().exp(), expected, rtol=1e-4, atol=1e-6)
    losses = -expected.log()[:-1].gather(1, IDS[0, 1:, None])[:, 0]
    torch.testing.assert_close(output.losses[0, :-1].double(), losses, rtol=1e-4, atol=1e-5)
    assert output.loss.item() == pytest.approx(losses.mean().item(), rel=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("cache", [0, 40])
def test_losses_without_a_part_are_those_of_a_gate_that_never_chooses_it(cache):
    model = build(cache=cache)
    wide = model.wide
    found = losses_without_parts(wide, model(IDS, labels=IDS))[:, :-1, LOSSES:].unbind(2)
    bias = wide.gate.outer_bias.clone()
    groups = [slice(0, 1), slice(1, 2), slice(2, None)][: 3 if cache else 2]
    for group, losses in zip(groups, found, strict=True):
        wide.gate.outer_bias.copy_(bias)
        wide.gate.outer_bias[group] -= 1e6
        torch.testing.assert_close(losses, model(IDS, labels=IDS).losses[:, :-1])


def test_in_training_the_network_learns_alone():
    model = build(dropout=0.0).train()
    given = model(IDS, labels=IDS)
    model.wide = None
    torch.testing.assert_close(model(IDS, labels=IDS).loss, given.loss)
    assert given.parts is None


@pytest.mark.slow
@pytest.mark.parametrize("pieces", [[18], [1] * 18, [5, 1, 8, 4], [17, 1]])
def test_states_remember_what_it_needs(pieces):
    model = build()
    with torch.no_grad():
        whole, states, found, start = model(IDS).logits, model.longspan.init_states(1), [], 0
        for size in pieces:
            output = model(IDS[:, start : start + size], past_key_values=states, use_cache=True)
            found.append(output.logits)
            states, start = output.past_key_values, start + size
    torch.testing.assert_close(torch.cat(found, 1), whole, rtol=1e-4, atol=1e-5)
    assert {name: tuple(tensor.shape) for name, tensor in states.history.items()} == {
        "ids": (1, CACHE),
        "outputs": (1, CACHE, 16),
    }


def test_states_are_saved_reordered_and_reset(tmp_path):
    model = build()
    rows = torch.cat((IDS, IDS.flip(1)))
    with torch.no_grad():
        states = model(rows[:, :9], use_cache=True).past_key_values
        save_file(states.tensors(), tmp_path / "states.safetensors")
        states.reorder_cache(torch.tensor([1, 0]))
        swapped = model(rows[:, 9:].flip(0), past_key_values=states).logits.flip(0)
        again = model.longspan.states_from(load_file(tmp_path / "states.safetensors"))
        expected = model(rows[:, 9:], past_key_values=again).logits
        torch.testing.assert_close(swapped, expected)
        torch.testing.assert_close(expected, model(rows).logits[:, 9:], rtol=1e-4, atol=1e-5)
        # A row that starts from scratch knows nothing of before.
        fresh = model(rows[:, 9:], past_key_values=again.reset(torch.tensor([True, False]))).logits
    torch.testing.assert_close(fresh[1], expected[1])
    torch.testing.assert_close(fresh[:1], model(rows[:1, 9:]).logits.detach(), rtol=1e-4, atol=1e-5)


def test_states_are_taken_back():
    model = build()
    states = RewindableStates(model.longspan.init_states(1), model.longspan.backbone)
    with torch.no_grad():
        states = model(IDS[:, :10], past_key_values=states).past_key_values
        states = model(torch.tensor([[3, 3, 3]]), past_key_values=states).past_key_values
        states.crop(-3)
        found = model(IDS[:, 10:], past_key_values=states).logits
        torch.testing.assert_close(found, model(IDS).logits[:, 10:], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("left", [True, False])
def test_padding_changes_nothing(left):
    model = build()
    padded = torch.full((2, 25), 5)
    mask = torch.zeros(2, 25, dtype=torch.long)
    place = slice(7, None) if left else slice(0, 18)
    padded[0, place], mask[0, place] = IDS[0], 1
    padded[1], mask[1] = torch.arange(25) % 9, 1
    with torch.no_grad():
        found = model(padded, attention_mask=mask, labels=padded.masked_fill(mask == 0, -100))
        alone = model(IDS, labels=IDS)
    torch.testing.assert_close(found.logits[:1, place], alone.logits, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.losses[:1, place], alone.losses, rtol=1e-4, atol=1e-5)


def test_packed_documents_are_apart():
    model = build()
    documents, positions = torch.tensor([[0] * 8 + [1] * 10]), torch.tensor([[*range(8), *range(10)]])
    with torch.no_grad():
        found = model(IDS, document_ids=documents, position_ids=positions).logits
        parts = [model(IDS[:, :8]).logits, model(IDS[:, 8:]).logits]
    torch.testing.assert_close(found, torch.cat(parts, 1), rtol=1e-4, atol=1e-5)


def test_some_positions_are_scored_alone():
    model = build()
    with torch.no_grad():
        whole = model(IDS).logits
        for keep, expected in ((1, whole[:, -1:]), (3, whole[:, -3:]), (torch.tensor([2, 9]), whole[:, [2, 9]])):
            torch.testing.assert_close(model(IDS, logits_to_keep=keep).logits, expected)


def test_rows_longer_than_a_block_of_the_cache():
    model = build(cache=300)
    ids = torch.randint(1, 12, (1, 700), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        whole = model(ids, labels=ids)
        states = model(ids[:, :430], use_cache=True).past_key_values
        torch.testing.assert_close(
            model(ids[:, 430:], past_key_values=states).logits, whole.logits[:, 430:], rtol=1e-3, atol=1e-4
        )
    losses = -whole.logits[:, :-1].gather(2, ids[:, 1:, None])[..., 0]
    torch.testing.assert_close(whole.losses[:, :-1], losses, rtol=1e-4, atol=1e-5)


def test_adaptive_softmax():
    model = build(cutoffs=[4, 8], embedding_dim=16, div_val=2)
    with torch.no_grad():
        output = model(IDS, labels=IDS, logits_to_keep=0)
    torch.testing.assert_close(output.logits.exp().sum(2), torch.ones(1, 18))
    losses = -output.logits[:, :-1].gather(2, IDS[:, 1:, None])[..., 0]
    torch.testing.assert_close(output.losses[:, :-1], losses)


@pytest.mark.slow
@pytest.mark.parametrize("mixer", ["additive", "softmax", "relative", "recurrent"])
def test_generate_continues_as_the_whole_sequence_would(mixer):
    model = build(mixers=[mixer])
    prompts = torch.tensor([[END, END, END, 1, 2, 3], [END, 4, 1, 2, 3, 1]])
    mask = torch.tensor([[0, 0, 1, 1, 1, 1], [1] * 6])
    for options in ({"num_beams": 1}, {"num_beams": 3}):
        found = model.generate(
            prompts, attention_mask=mask, max_new_tokens=12, do_sample=False, eos_token_id=None, **options
        )
        alone = model.generate(prompts[:1, 2:], max_new_tokens=12, do_sample=False, eos_token_id=None, **options)
        assert found[0, 6:].tolist() == alone[0, 4:].tolist()
    sequence = prompts[:1, 2:]
    with torch.no_grad():
        for _ in range(12):
            sequence = torch.cat((sequence, model(sequence).logits[:, -1:].argmax(2)), 1)
    greedy = model.generate(prompts[:1, 2:], max_new_tokens=12, do_sample=False, eos_token_id=None)
    assert greedy.tolist() == sequence.tolist()


def test_assisted_decoding_gives_the_same():
    model = build()
    options = {"max_new_tokens": 20, "do_sample": False, "eos_token_id": None}
    assert (
        model.generate(IDS, **options).tolist() == model.generate(IDS, prompt_lookup_num_tokens=3, **options).tolist()
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_precisions(dtype):
    model = build()
    with torch.no_grad():
        expected = model(IDS, labels=IDS).loss.item()
        found = model.to(dtype)(IDS, labels=IDS).loss
    assert found.item() == pytest.approx(expected, rel=2e-2 if dtype.itemsize == 2 else 1e-5)


def test_it_is_saved_and_loaded(tmp_path):
    model = build()
    model.save_pretrained(tmp_path)
    again = LongspanForCausalLM.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        torch.testing.assert_close(again(IDS).logits, model(IDS).logits, rtol=0, atol=0)
    assert all(not buffer.requires_grad for buffer in again.wide.buffers())


def test_a_new_model_is_its_network():
    model = build()
    model.wide.counts.reset_parameters()
    model.wide.gate.reset_parameters()
    with torch.no_grad():
        found = model(IDS).logits
        model.wide = None
        torch.testing.assert_close(found, model(IDS).logits.log_softmax(2), rtol=1e-5, atol=1e-5)


def test_mistakes_are_named():
    model = build()
    with pytest.raises(UserError, match="expected input_ids for a model with wide=True"):
        model(inputs_embeds=torch.randn(1, 3, 16))
    with pytest.raises(UserError, match="expected a model with wide=False to resize"):
        model.resize_token_embeddings(20)
    with pytest.raises(UserError, match="wide_cache must be at least 0"):
        build(cache=-1)


@pytest.mark.slow
def test_the_gate_finds_the_part_that_knows():
    """Where the evidence says which part is right, the weights follow it."""
    wide = build().wide
    random = torch.Generator().manual_seed(1)
    evidence = torch.randn(4000, wide.evidence_size, generator=random)
    parts = torch.full((4000, 4), -5.0)
    right = torch.where(evidence[:, 3] > 0, 0, 1)
    parts[torch.arange(4000), right] = -0.1
    fit_gate(wide.gate, evidence, parts, 0)
    chosen = wide.gate(evidence).argmax(1)
    assert (chosen == right).float().mean() > 0.97
