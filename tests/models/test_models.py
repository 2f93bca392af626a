"""The Hugging Face classes: saving, loading, Auto classes, checkpointing, precision, padding."""

import json
from pathlib import Path
from typing import Any

import checkpointing
import pytest
import torch
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification
from transformers.modeling_layers import GradientCheckpointingLayer

from longspan import LongspanConfig, LongspanForSequenceClassification, LongspanModel, UserError
from longspan.models.heads.classification import POOLINGS, Pooling


def config(**changes: Any) -> LongspanConfig:
    settings: dict[str, Any] = {"vocab_size": 50, "dim": 16, "heads": 4, "depth": 2, "num_labels": 3, "dropout": 0.0}
    return LongspanForSequenceClassification.configured(**settings | changes)


def batch(b: int = 2, t: int = 9) -> torch.Tensor:
    return torch.randint(2, 50, (b, t), generator=torch.Generator().manual_seed(t))


@pytest.mark.parametrize("mixers", [["additive"], ["softmax"], ["additive", "softmax"]])
@pytest.mark.parametrize("share", [False, True])
def test_saved_models_come_back_through_the_auto_classes(mixers: list[str], share: bool, tmp_path: Path) -> None:
    model = LongspanForSequenceClassification(config(mixers=mixers, share_layers=share)).eval()
    model.save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors").exists()
    assert isinstance(AutoConfig.from_pretrained(tmp_path), LongspanConfig)
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    assert isinstance(loaded, LongspanForSequenceClassification)
    assert torch.equal(loaded(batch()).logits, model(batch()).logits)
    assert isinstance(AutoModel.from_pretrained(tmp_path), LongspanModel)


def test_a_new_head_on_a_saved_body_keeps_the_body(tmp_path: Path) -> None:
    body = LongspanModel(config()).eval()
    body.save_pretrained(tmp_path)
    model = LongspanForSequenceClassification.from_pretrained(tmp_path, num_labels=5).eval()
    assert torch.equal(model.longspan(batch()).last_hidden_state, body(batch()).last_hidden_state)
    assert model(batch()).logits.shape == (2, 5)
    assert model.classifier.weight.std() > 0


def test_settings_of_parts_are_changed_by_their_names(tmp_path: Path) -> None:
    LongspanForSequenceClassification(config()).save_pretrained(tmp_path)
    kind = LongspanForSequenceClassification
    assert kind.from_pretrained(tmp_path, pooling="max").pooling.name == "max"
    nested = kind.from_pretrained(tmp_path, head={"pooling": "mean"}, embeddings={"ngrams": [2]})
    assert (nested.pooling.name, nested.config.embeddings.ngrams) == ("mean", [2])
    saved = AutoConfig.from_pretrained(tmp_path, classifier_dropout=0.5)
    assert (saved.head.classifier_dropout, saved.head.pooling) == (0.5, "attention")
    with pytest.raises(UserError, match="pooling is a setting of the head 'classification'"):
        LongspanConfig(pooling="max")
    with pytest.raises(UserError, match=r"the head 'classification' has no option 'crf'; .* 'token_classification'"):
        LongspanConfig(head={"kind": "classification", "crf": True})


class Named(LongspanForSequenceClassification):
    """A head with a weight of the same name as one below it, which transformers would load in its place."""

    def __init__(self, config: LongspanConfig) -> None:
        super().__init__(config)
        self.positions = torch.nn.Linear(2, 2)
        self.positions.log_scale = torch.nn.Parameter(torch.zeros(()))
        self.post_init()


def test_heads_have_names_of_their_own() -> None:
    with pytest.raises(TypeError, match=r"expected other names than those in 'longspan' for positions.log_scale"):
        Named(config())


@pytest.mark.slow
@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("position", ["sinusoidal", "learned", "fourier", "none"])
@pytest.mark.parametrize("combine", ["add", "concat"])
def test_padding_and_batch_mates_change_nothing(pooling: str, position: str, combine: str) -> None:
    model = LongspanForSequenceClassification(
        config(pooling=pooling, position=position, position_combine=combine, max_positions=64)
    ).eval()
    ids = batch(1, 7)
    alone = model(ids).logits
    for left, right in ((3, 0), (0, 30), (2, 5)):
        padded = torch.nn.functional.pad(ids, (left, right))
        mask = torch.nn.functional.pad(torch.ones_like(ids), (left, right))
        mates, mates_mask = torch.randint(2, 50, (2, 7 + left + right)), torch.ones(2, 7 + left + right)
        logits = model(torch.cat((padded, mates)), torch.cat((mask, mates_mask))).logits
        torch.testing.assert_close(logits[:1], alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_document_without_tokens_is_finite_and_gives_no_gradient(pooling: str) -> None:
    model = LongspanForSequenceClassification(config(pooling=pooling))
    mask = torch.tensor([[1] * 9, [0] * 9])
    output = model(batch(), mask, labels=torch.tensor([0, 1]))
    torch.testing.assert_close(output.logits[1], model.classifier.bias)
    output.loss.backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_gradient_checkpointing_gives_the_same_gradients() -> None:
    model = LongspanForSequenceClassification(config(dropout=0.3))

    def gradients() -> list[torch.Tensor]:
        torch.manual_seed(1)
        model.zero_grad()
        model(batch(), labels=torch.tensor([0, 1])).loss.backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    plain = gradients()
    checkpointing.enable(model)
    assert all(layer.gradient_checkpointing for layer in model.longspan.backbone.blocks)
    for one, other in zip(gradients(), plain, strict=True):
        torch.testing.assert_close(one, other)


def test_bfloat16_follows_float32() -> None:
    model = LongspanForSequenceClassification(config()).eval()
    expected = model(batch(2, 3000)).logits
    logits = model.bfloat16()(batch(2, 3000)).logits
    assert logits.dtype == torch.bfloat16
    torch.testing.assert_close(logits.float(), expected, rtol=0.05, atol=0.02)


def test_outputs_hidden_states_and_tuples() -> None:
    model = LongspanModel(config()).eval()
    states = model(batch(), output_hidden_states=True).hidden_states
    assert [state.shape for state in states] == [(2, 9, 16)] * 3
    assert isinstance(model(batch(), return_dict=False), tuple)


def test_token_dropout_and_label_smoothing_only_in_training() -> None:
    model = LongspanForSequenceClassification(config(token_dropout=0.5, label_smoothing=0.2))
    labels = torch.tensor([0, 1])
    assert not torch.equal(model(batch()).logits, model(batch()).logits)
    model.eval()
    logits = model(batch()).logits
    assert torch.equal(logits, model(batch()).logits)
    torch.testing.assert_close(model(batch(), labels=labels).loss, torch.nn.functional.cross_entropy(logits, labels))


#: A value for each setting that has other names.
VALUES: dict[str, Any] = {
    "dim": 32, "depth": 3, "heads": 4, "feed_forward_dim": 48, "max_positions": 99, "embedding_dim": 24,
    "activation": "relu", "dropout": 0.25,
}  # fmt: skip


@pytest.mark.parametrize("alias", LongspanConfig.attribute_map)
def test_settings_have_the_names_that_other_models_of_transformers_use(alias: str, tmp_path: Path) -> None:
    name = LongspanConfig.attribute_map[alias]
    made: Any = LongspanForSequenceClassification.configured(**{alias: VALUES[name]})
    assert made.to_dict() == LongspanForSequenceClassification.configured(**{name: VALUES[name]}).to_dict()
    assert getattr(made, alias) == getattr(made, name) == VALUES[name]
    default = getattr(LongspanConfig(), name)
    setattr(made, alias, default)
    assert getattr(made, name) == default
    # What is saved has one name, whichever was used.
    setattr(made, alias, VALUES[name])
    made.save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    assert written[name] == VALUES[name]
    assert alias not in written
    loaded: Any = LongspanConfig.from_pretrained(tmp_path)
    assert loaded.to_diff_dict() == made.to_diff_dict()
    loaded.save_pretrained(tmp_path / "again")
    assert (tmp_path / "again" / "config.json").read_bytes() == (tmp_path / "config.json").read_bytes()
    assert getattr(LongspanConfig.from_pretrained(tmp_path, **{alias: default}), name) == default


def test_tools_find_the_names_they_read() -> None:
    made: Any = LongspanConfig(dim=48, depth=3, heads=4, feed_forward_dim=80, max_positions=77, dropout=0.2)
    assert (made.hidden_size, made.num_hidden_layers, made.num_attention_heads) == (48, 3, 4)
    assert (made.intermediate_size, made.max_position_embeddings, made.hidden_dropout_prob) == (80, 77, 0.2)
    assert (made.hidden_act, made.vocab_size, made.tie_word_embeddings) == ("gelu", 16000, True)
    assert made.get_text_config() is made
    # What is derived follows from what is given by another name too.
    assert LongspanConfig(hidden_size=32).to_dict() == LongspanConfig(dim=32).to_dict()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"dim": 64, "hidden_size": 32}, "one value of dim, got 64 as dim and 32 as hidden_size; leave one of them"),
        ({"d_model": 64, "hidden_size": 32}, "got 64 as d_model and 32 as hidden_size"),
        ({"hidden_size": 0}, "dim must be at least 1"),
        ({"hidden_act": "tanh"}, "activation"),
    ],
)
def test_other_names_are_checked_as_the_setting_is(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        LongspanForSequenceClassification.configured(**given)
    assert LongspanConfig(dim=64, hidden_size=64, d_model=64).dim == 64


def test_configuration_refuses_nonsense() -> None:
    assert LongspanConfig(dim=32).feed_forward_dim == 128
    with pytest.raises(UserError, match="did you mean 'attention'"):
        LongspanForSequenceClassification.configured(pooling="atention")
    with pytest.raises(UserError, match="dim must be at least 1"):
        LongspanConfig(dim=0)
    with pytest.raises(UserError, match="exactly one"):
        LongspanModel(config())(input_ids=batch(), inputs_embeds=torch.zeros(1, 2, 16))


def test_packed_documents_are_separate_documents() -> None:
    model = LongspanModel(config(position="none")).eval()
    ids = batch(1, 10)
    document_ids = torch.tensor([[0] * 4 + [1] * 6])
    packed = model(ids, document_ids=document_ids).last_hidden_state
    torch.testing.assert_close(packed[:, :4], model(ids[:, :4]).last_hidden_state)
    torch.testing.assert_close(packed[:, 4:], model(ids[:, 4:]).last_hidden_state)


def test_layers_are_checkpointed_placed_and_sharded_as_transformers_knows_them() -> None:
    for head in (LongspanModel, LongspanForSequenceClassification):
        model: Any = head(config(depth=3, share_layers=True, mixers=["additive", "softmax"]))
        layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
        assert len(layers) == 2
        assert {type(layer).__name__ for layer in layers} == set(model._no_split_modules)
        checkpointing.enable(model)
        assert all(layer.gradient_checkpointing for layer in layers)
        checkpointing.disable(model)
        assert not any(layer.gradient_checkpointing for layer in layers)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_layers_run_twice_and_nothing_else_does(reentrant: bool) -> None:
    model = LongspanForSequenceClassification(config()).train()
    calls: list[str] = []
    for name, module in model.named_modules():
        if name.endswith(("feed_forward", "pooling")):
            module.register_forward_pre_hook(lambda *_, name=name: calls.append(name.split(".")[-1]))
    checkpointing.enable(model, {"use_reentrant": reentrant})
    if reentrant:
        model.enable_input_require_grads()
    model(batch(), labels=torch.tensor([0, 1])).loss.backward()
    assert calls.count("feed_forward") == 4
    assert calls.count("pooling") == 1


@pytest.mark.parametrize("pooling", POOLINGS)
def test_nan_in_padding_reaches_nothing(pooling: str) -> None:
    model = LongspanForSequenceClassification(config(pooling=pooling))
    vectors = model.get_input_embeddings()(batch()).detach()
    mask = torch.ones(2, 9)
    mask[0, :3] = mask[1, 6:] = 0

    def run(padding: float) -> tuple[torch.Tensor, list[torch.Tensor]]:
        model.zero_grad()
        filled = vectors.masked_fill(mask.unsqueeze(-1) == 0, padding)
        output = model(inputs_embeds=filled, attention_mask=mask, labels=torch.tensor([0, 1]))
        output.loss.backward()
        return output.logits, [p.grad for p in model.parameters() if p.grad is not None]

    (logits, gradients), (expected, expected_gradients) = run(float("nan")), run(0.0)
    assert torch.equal(logits, expected)
    assert all(torch.equal(one, other) for one, other in zip(gradients, expected_gradients, strict=True))


@pytest.mark.parametrize("pooling", POOLINGS)
def test_pooling_replaces_padding(pooling: str) -> None:
    pool, x = Pooling(pooling, 4), torch.randn(2, 5, 4)
    mask = torch.tensor([[True, True, True, False, False], [False] * 5])
    torch.testing.assert_close(pool(x.masked_fill(~mask.unsqueeze(-1), float("nan")), mask)[:1], pool(x[:1, :3]))
    assert not pool(x.masked_fill(~mask.unsqueeze(-1), float("nan")), mask)[1].any()


def test_max_and_mean_are_those_of_the_real_tokens() -> None:
    x, mask = -torch.rand(3, 6, 4) - 1, torch.tensor([[True] * 6, [False, True, True, False, False, True], [False] * 6])
    # All numbers are negative, so that zeros at padding would be the largest.
    largest = torch.stack((x[0].max(0).values, x[1, mask[1]].max(0).values, torch.zeros(4)))
    mean = torch.stack((x[0].mean(0), x[1, mask[1]].mean(0), torch.zeros(4)))
    torch.testing.assert_close(Pooling("max", 4)(x, mask), largest)
    torch.testing.assert_close(Pooling("max", 4)(x), x.amax(1))
    torch.testing.assert_close(Pooling("mean+max", 4)(x, mask), torch.cat((mean, largest), 1))
    assert Pooling("mean+max", 4).output_dim == 8


def test_mixers_go_by_other_names_too() -> None:
    names = ["lstm", "fastformer", "cnn"]
    model = LongspanModel(config(mixers=names, depth=3, mixer_options={"lstm": {"bias": False}}))
    kinds = [type(block.mixer).__name__ for block in model.backbone.layers]
    assert kinds == ["Recurrent", "Additive", "Convolution"]
    assert model(batch()).last_hidden_state.shape[2] == model.config.dim
    with pytest.raises(UserError, match="mixer 'lstm' has no option 'hidden'"):
        LongspanModel(config(mixers=["lstm"], mixer_options={"lstm": {"hidden": 4}}))
