"""Attention of other people's models replaced by mixers: the same function with softmax, masks, caches and refusals."""

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertLMHeadModel,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    RobertaConfig,
    RobertaModel,
)

import longspan
from longspan import mixers
from longspan.errors import UserError
from longspan.mixers.looks import Pairwise

SMALL: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 40,
}


def bert(**more: Any) -> Any:
    return BertForSequenceClassification(BertConfig(**SMALL, **more))


def bert_decoder() -> Any:
    return BertLMHeadModel(BertConfig(**SMALL, is_decoder=True))


def roberta() -> Any:
    return RobertaModel(RobertaConfig(**SMALL, pad_token_id=1), add_pooling_layer=False)


def gpt2(**more: Any) -> Any:
    sizes: dict[str, Any] = {"vocab_size": 50, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 40}
    return GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0, pad_token_id=0, **more))


def llama(**more: Any) -> Any:
    return LlamaForCausalLM(LlamaConfig(**SMALL, pad_token_id=0, **{"num_key_value_heads": 2, **more}))


MODELS = {
    "bert": bert,
    "bert decoder": bert_decoder,
    "roberta": roberta,
    "gpt2": gpt2,
    "gpt2 scaled": lambda: gpt2(scale_attn_by_inverse_layer_idx=True),
    "llama": llama,
}


def made(name: str) -> Any:
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            # Biases are zero at first.
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model


def ids(length: int = 12) -> Tensor:
    return torch.randint(2, 50, (3, length), generator=torch.Generator().manual_seed(1))


def padded(left: bool = False) -> Tensor:
    mask = torch.ones(3, 12, dtype=torch.long)
    mask[1, -5:] = mask[2, -1:] = 0
    return mask.flip(1) if left else mask


def output(model: Any, *given: Any, **more: Any) -> Tensor:
    with torch.no_grad():
        found: Tensor = model(*given, **more)[0]
    return found


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("mask", ["none", "right", "left"])
@pytest.mark.parametrize("name", MODELS)
def test_softmax_computes_the_same_function(name: str, mask: str, implementation: str) -> None:
    model = made(name)
    model.config._attn_implementation = implementation
    given: dict[str, Any] = {} if mask == "none" else {"attention_mask": padded(mask == "left")}
    before = output(model, ids(), **given)
    report = longspan.replace_attention(model, "softmax")
    assert [one.kept for one in report.modules] == [("query", "key", "value", "output")] * 2
    assert not any(one.new for one in report.modules)
    after = output(model, ids(), **given)
    if before.ndim == 2:
        # It reads the first position, which may be padding.
        before, after = before[:1], after[:1]
    elif mask != "none":
        before, after = (one[padded(mask == "left").bool()] for one in (before, after))
    torch.testing.assert_close(after, before, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert decoder"])
@pytest.mark.parametrize("beams", [1, 3])
def test_generation_with_a_state_in_the_cache_is_the_same(name: str, beams: int) -> None:
    model, mask = made(name), padded(left=True)
    how: dict[str, Any] = {"attention_mask": mask, "max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False}
    how |= {"num_beams": beams, "pad_token_id": 0}
    before = model.generate(ids(), **how)
    longspan.replace_attention(model, "softmax")
    assert torch.equal(model.generate(ids(), **how), before)
    assert torch.equal(model.generate(ids(), use_cache=False, **how), before)


@pytest.mark.parametrize("mixer", mixers.names())
@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "nn"])
def test_every_mixer_works_in_it_or_is_refused_with_a_reason(name: str, mixer: str) -> None:
    torch.manual_seed(0)
    if name == "nn":
        layer = nn.TransformerEncoderLayer(32, 4, 48, 0.0, batch_first=True)
        model: Any = nn.TransformerEncoder(layer, 2).eval()
        given: tuple[Any, ...] = (torch.randn(3, 12, 32),)
        mask: dict[str, Any] = {"src_key_padding_mask": padded() == 0}
    else:
        model, given, mask = made(name), (ids(),), {"attention_mask": padded()}
    names = set(model.state_dict())
    kind = mixers.load(mixer)
    causal = name in ("gpt2", "llama")
    if kind.capabilities.structure is not None or (causal and not kind.capabilities.causal):
        with pytest.raises(UserError, match=r"edges of graphs|with a causal form"):
            longspan.replace_attention(model, mixer)
        assert set(model.state_dict()) == names
        return
    report = longspan.replace_attention(model, mixer)
    for one in report.modules:
        assert bool(one.kept) == issubclass(kind, Pairwise), str(report)
        assert bool(one.new) or mixer in ("softmax", "linear", "local", "bigbird"), str(report)
    model.eval()
    if name == "nn":
        # The fast path would need no gradients.
        with torch.no_grad():
            found = model(*given, **mask)[1, :7]
            alone = model(given[0][1:2, :7])[0]
    else:
        found, alone = output(model, *given, **mask)[1], output(model, given[0][1:2, :7], use_cache=False)[0]
        found = found[:7] if causal else found
    torch.testing.assert_close(found, alone, atol=1e-4, rtol=1e-3)
    if causal:
        # A step at a time, from a cache.
        first = model(ids()[:, :8], use_cache=True)
        rest = [model(ids()[:, at : at + 1], past_key_values=first.past_key_values).logits for at in range(8, 12)]
        whole = model(ids(), use_cache=False).logits
        torch.testing.assert_close(torch.cat([first.logits, *rest], 1), whole, atol=1e-4, rtol=1e-3)
        assert first.past_key_values.get_seq_length() == 12
    model.train()
    loss = model(*given, **mask)[0] if name == "nn" else model(*given, **mask).logits
    loss.sum().backward()
    trained = [parameter for one in report.modules for parameter in model.get_submodule(one.name).parameters()]
    assert all(parameter.grad is not None for parameter in trained)


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
def test_the_fast_path_of_an_encoder_does_not_go_around_the_mixer(batch_first: bool, norm_first: bool) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 48, 0.0, batch_first=batch_first, norm_first=norm_first)
    nested = batch_first and not norm_first
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=nested).eval().requires_grad_(False)
    x, padding = torch.randn(3, 12, 32), padded() == 0
    x = x if batch_first else x.transpose(0, 1)
    with warnings.catch_warnings():
        # PyTorch says that its nested tensors are a prototype.
        warnings.simplefilter("ignore")
        before = model(x, src_key_padding_mask=padding)
    longspan.replace_attention(model, "softmax")
    after = model(x, src_key_padding_mask=padding)
    real = ~padding if batch_first else ~padding.T
    torch.testing.assert_close(after[real], before[real], atol=2e-5, rtol=2e-5)
    # Its weights decide.
    for one in model.layers:
        nn.init.zeros_(one.self_attn.mixer.output.weight)
    assert not torch.allclose(model(x, src_key_padding_mask=padding)[real], before[real], atol=1e-2)
    causal = nn.Transformer.generate_square_subsequent_mask(12)
    with pytest.raises(UserError, match="expected a mask of padding alone"):
        model(x, mask=causal, is_causal=True)


def test_causal_masks_of_nn_multihead_attention() -> None:
    torch.manual_seed(0)
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 48, 0.0, batch_first=True), 2).eval()
    x, mask = torch.randn(3, 12, 32), nn.Transformer.generate_square_subsequent_mask(12)
    before = model(x, mask=mask)
    longspan.replace_attention(model, "softmax", causal=True)
    torch.testing.assert_close(model(x, mask=mask), before, atol=2e-5, rtol=2e-5)
    torch.testing.assert_close(model(x, mask=mask, is_causal=True), before, atol=2e-5, rtol=2e-5)
    with pytest.raises(UserError, match="got neither"):
        model(x)
    with pytest.raises(UserError, match="numbers to add to scores"):
        model(x, mask=torch.randn(12, 12))


def test_cross_attention_of_a_decoder_reads_the_context() -> None:
    torch.manual_seed(0)
    model = nn.TransformerDecoder(nn.TransformerDecoderLayer(32, 4, 48, 0.0, batch_first=True), 1).eval()
    x, memory, padding = torch.randn(3, 5, 32), torch.randn(3, 12, 32), padded() == 0
    before = model(x, memory, memory_key_padding_mask=padding)
    longspan.replace_attention(model, "softmax")
    torch.testing.assert_close(model(x, memory, memory_key_padding_mask=padding), before, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("made", [bert, llama])
def test_attention_of_an_unknown_kind_with_the_same_parts_is_refused(made: Any) -> None:
    # Such as RoFormer's, which has positions of its own.
    model = made()
    for module in model.modules():
        if type(module).__name__.endswith("Attention"):
            module.__class__ = type("OtherAttention", (type(module),), {})
    with pytest.raises(UserError, match="attention that may differ from that of"):
        longspan.replace_attention(model, "softmax")


def test_some_layers_stay_attention() -> None:
    model = made("gpt2")
    report = longspan.replace_attention(model, "linear", layers=[-1])
    assert [one.why for one in report.modules] == ["attention, as before", ""]
    assert "transformer.h.1.attn (GPT2Attention): linear; kept: query, key, value, output" in str(report)
    how: dict[str, Any] = {"max_new_tokens": 3, "do_sample": False, "pad_token_id": 0}
    assert torch.equal(model.generate(ids(), **how), model.generate(ids(), use_cache=False, **how))


def test_replaced_models_are_saved_and_loaded_by_their_weights() -> None:
    one, other = made("bert"), made("bert")
    longspan.replace_attention(one, "additive")
    longspan.replace_attention(other, "additive")
    other.load_state_dict(one.state_dict())
    assert torch.equal(output(other, ids()), output(one, ids()))


def test_what_is_lost_is_said() -> None:
    assert longspan.replace_attention(made("llama"), "delta").modules[0].lost == ("rotary positions",)
    lost = longspan.replace_attention(made("gpt2"), "delta").modules[0].lost
    assert lost == ("attention dropout 0.1", *(f"bias of {part}" for part in ("query", "key", "value", "output")))


@pytest.mark.parametrize(
    ("model", "mixer", "options", "message"),
    [
        (lambda: nn.Linear(3, 3), "linear", {}, "got a Linear with none of them"),
        (lambda: nn.MultiheadAttention(32, 4, kdim=8), "linear", {}, "keys or values of another width"),
        (gpt2, "nothing", {}, "there is no mixer"),
        (gpt2, "linear", {"layers": [2]}, "expected layers from 0 to 1, got 2"),
        (gpt2, "linear", {"causal": False}, "expected causal attention to stay so"),
        (gpt2, "linear", {"slots": 3}, "no option 'slots'"),
        (gpt2, "softmax", {"heads": 5}, "heads"),
        (lambda: llama(rope_parameters={"rope_type": "default", "rope_theta": 5e5}), "softmax", {}, "base 10,000"),
        (lambda: llama(head_dim=16), "softmax", {}, "heads of 16 channels"),
        (lambda: nn.MultiheadAttention(32, 4), "softmax", {}, "got the attention itself"),
    ],
)
def test_refusals(model: Any, mixer: str, options: dict[str, Any], message: str) -> None:
    built = model()
    names = set(built.state_dict())
    with pytest.raises(UserError, match=message):
        longspan.replace_attention(built, mixer, **options)
    assert set(built.state_dict()) == names


def test_calls_that_a_mixer_cannot_serve_are_refused() -> None:
    model = made("llama")
    longspan.replace_attention(model, "linear")
    packed = torch.arange(12).repeat(3, 1) % 6
    with pytest.raises(UserError, match="expected a mask of padding and of later positions"):
        model(ids(), position_ids=packed, use_cache=False)
    with pytest.raises(UserError, match="position_ids that follow each other"):
        model(ids(), position_ids=2 * torch.arange(12)[None], attention_mask=padded())
    with pytest.raises(UserError, match="expected an empty DynamicCache"):
        model(ids(), past_key_values=made("llama")(ids()).past_key_values)
    cache = model(ids()).past_key_values
    with pytest.raises(UserError, match="without going back"):
        cache.layers[0].crop(-2)
    decoder = made("bert decoder")
    longspan.replace_attention(decoder, "recurrent")
    assert decoder(ids()).logits.isfinite().all()
