"""`check_model` finds each kind of fault, finds none in a model without, and says what it cannot check."""

import functools
import json
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedConfig,
    T5Config,
    T5ForConditionalGeneration,
)

from longspan.errors import UserError
from longspan.models import LongspanConfig, LongspanForCausalLM, LongspanForSeq2SeqLM
from longspan.results.check import ModelReport
from longspan.testing import check_model, model_checks
from longspan.testing.models import CHECKS, SLOW
from longspan.testing.models.targets import resolve


class Faulty(LlamaForCausalLM):
    """A language model with one fault."""

    fault: ClassVar[str] = ""
    built: ClassVar[int] = 0

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(config)
        Faulty.built += 1
        self.number, self.kept = Faulty.built, 0.0

    def forward(
        self,
        input_ids: Any = None,
        attention_mask: Any = None,
        position_ids: Any = None,
        past_key_values: Any = None,
        use_cache: bool | None = None,
        logits_to_keep: int = 0,
        **more: Any,
    ) -> Any:
        fault, steps = self.fault, input_ids.shape[1]
        if attention_mask is not None and (fault == "padding" or (fault == "single row" and len(input_ids) == 1)):
            # Without a mask, positions that start over would separate padding from real tokens.
            attention_mask = torch.ones_like(attention_mask)
        if fault == "packing" and attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        if fault == "lost cache" and past_key_values is not None and steps > 1:
            past_key_values = None
        if fault == "lost position" and past_key_values is not None and position_ids is None:
            position_ids = torch.arange(steps).unsqueeze(0)
        out = super().forward(
            input_ids,
            attention_mask,
            position_ids,
            past_key_values,
            use_cache=use_cache,
            logits_to_keep=0 if fault == "logits" else logits_to_keep,
            **more,
        )
        y = out.logits
        if fault == "alone":
            y = self.lm_head(self.get_input_embeddings()(input_ids))
        elif fault == "rows":
            y = y + 0.01 * y.mean(0, keepdim=True)
        elif fault == "future":
            y = y + 0.01 * y.flip(1)
        elif fault == "gradient":
            y = y + y.flip(1) - y.flip(1).detach()
        elif fault == "memory":
            y, self.kept = y + self.kept, float(y.mean())
        elif fault == "beams" and out.past_key_values is not None:
            out.past_key_values.reorder_cache = lambda order: None
        elif fault == "float16" and y.dtype == torch.float16:
            y = y * 6e4
        elif fault == "bfloat16" and y.dtype == torch.bfloat16:
            y = y / 0.0
        elif (
            (fault == "attention" and self.config._attn_implementation == "sdpa")
            or (fault == "training" and self.training)
            or (fault == "checkpointing" and self.model.gradient_checkpointing)
        ):
            y = 1.01 * y
        elif fault == "saving":
            y = y + self.number
        elif fault == "logits" and logits_to_keep:
            y = y[:, :logits_to_keep]
        elif fault == "compilation" and torch.compiler.is_compiling():
            y = 1.01 * y
        out.logits = y
        return out

    def prepare_inputs_for_generation(self, input_ids: Any, attention_mask: Any = None, **more: Any) -> Any:
        inputs = super().prepare_inputs_for_generation(input_ids, attention_mask=attention_mask, **more)
        if self.fault == "generation":
            inputs["attention_mask"] = torch.ones_like(attention_mask)
        return inputs


#: What finds each fault.
FOUND = {
    "alone": ("influence",),
    "padding": ("padding-on-the-left", "cached-padding", "generation"),
    "single row": ("padding-on-the-left", "cached-padding", "generation"),
    "rows": ("other-rows",),
    "memory": ("earlier-inputs",),
    "future": ("future-in-outputs", "future-in-gradients"),
    "gradient": ("future-in-gradients",),
    "lost position": ("cached-steps", "cached-chunks"),
    "lost cache": ("cached-chunks",),
    "generation": ("generation",),
    "beams": ("beams",),
    "packing": ("packing",),
    "float16": ("float16",),
    "bfloat16": ("bfloat16",),
    "attention": ("attention-implementations",),
    "training": ("training-mode",),
    "checkpointing": ("gradient-checkpointing",),
    "saving": ("saving",),
    "logits": ("logits-to-keep",),
}


@pytest.fixture(autouse=True)
def fault(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a parameter of that name, there is none."""
    monkeypatch.setattr(Faulty, "fault", getattr(request, "param", ""))


def outcomes(report: ModelReport) -> dict[str, str]:
    return {check.check: check.outcome for check in report.checks}


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "found"), FOUND.items(), ids=[*FOUND], indirect=["fault"])
def test_each_fault_is_found(fault: None, found: tuple[str, ...]) -> None:
    report = check_model(Faulty, only=found)
    assert {check.check for check in report.failed} == set(found)
    for check in report.failed:
        # Far from the tolerance, or an error that says what is wrong.
        assert check.reason if check.deviation is None else check.deviation > 10 * (check.tolerance or 0)


@pytest.mark.slow
def test_a_model_without_faults_passes_all_checks() -> None:
    report = check_model(Faulty)
    assert outcomes(report) == dict.fromkeys([name for name in CHECKS if name not in SLOW], "passed")
    assert report.attentions == ["eager", "sdpa"]
    assert all(check.deviation is not None for check in report.checks if check.check != "influence")


def test_every_check_has_a_fault() -> None:
    assert {name for names in FOUND.values() for name in names} | {"padding-on-the-right", *SLOW} == set(CHECKS)


class SeesPadding(BertForMaskedLM):
    """An encoder that ignores the mask of a single row."""

    def forward(self, input_ids: Any, attention_mask: Any = None, **more: Any) -> Any:
        return super().forward(input_ids, None if len(input_ids) == 1 else attention_mask, **more)


def test_padding_on_the_right_of_a_single_row_is_found() -> None:
    report = check_model(SeesPadding, only=["padding-on-the-right"])
    (check,) = report.failed
    assert "batch size 1" in check.where


@pytest.mark.slow
@pytest.mark.usefixtures("no_shape_checks")
@pytest.mark.parametrize("fault", ["", "compilation"], indirect=True)
def test_compilation(fault: None, monkeypatch: pytest.MonkeyPatch) -> None:
    # Traced, without a compiler of C++.
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    report = check_model(Faulty, only=["compilation"])
    assert bool(report.failed) == (Faulty.fault == "compilation")


@pytest.mark.slow
@pytest.mark.parametrize("kind", [BertForMaskedLM, T5ForConditionalGeneration, GPT2LMHeadModel])
def test_encoders_and_decoders_pass(kind: Any) -> None:
    report = check_model(kind)
    assert not report.failed
    expected = {BertForMaskedLM: "masked", T5ForConditionalGeneration: "seq2seq", GPT2LMHeadModel: "causal"}
    assert report.task == expected[kind]
    causal = report.of("future-in-outputs")
    assert causal is not None
    assert causal.outcome == ("not applicable" if report.task == "masked" else "passed")


@pytest.mark.slow
@pytest.mark.parametrize("mixers", [["additive"], ["messages", "softmax"], ["delta"]])
def test_our_language_models_pass(mixers: list[str]) -> None:
    config = LongspanConfig(mixers=mixers, causal=True, dim=32, heads=4, vocab_size=40, pad_token_id=0)
    config.architectures = ["LongspanForCausalLM"]
    report = check_model(config)
    assert set(outcomes(report).values()) == {"passed", "not applicable"}
    assert outcomes(report)["packing"] == "passed"


@pytest.mark.slow
def test_our_encoder_decoder_passes() -> None:
    assert not check_model(LongspanForSeq2SeqLM).failed


def test_limits_of_a_model_are_not_faults() -> None:
    """BART has absolute positions, and takes no position_ids."""
    report = check_model("bart", only=["padding-on-the-left"])
    (check,) = report.checks
    assert check.outcome == "not claimed"
    assert check.deviation is not None
    assert check.deviation > 1e-3
    assert "position_ids" in check.reason


def test_what_a_model_refuses_is_not_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **options: Any) -> None:
        raise NotImplementedError("no generation here")

    monkeypatch.setattr(Faulty, "generate", refuse)
    (check,) = check_model(Faulty, only=["generation"]).checks
    assert (check.outcome, check.reason) == ("refused", "NotImplementedError: no generation here")


def test_an_operation_that_goes_wrong_is_no_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    def unpack(*arguments: Any, **options: Any) -> None:
        _, _ = torch.zeros(3)

    def given(*arguments: Any, **options: Any) -> None:
        torch.optim.SGD([torch.zeros(1)], lr=-1.0)

    for wrong in (unpack, given):
        monkeypatch.setattr(Faulty, "generate", wrong)
        (check,) = check_model(Faulty, only=["generation"]).checks
        assert check.outcome == "failed"
        assert check.reason.startswith("ValueError: ")


def test_models_are_tiny_and_keep_their_kinds_of_layers(tmp_path: Path) -> None:
    config = LlamaConfig(hidden_size=4096, num_hidden_layers=80, vocab_size=128_000, hidden_act="relu")
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(tmp_path)
    # Weights are not opened.
    (tmp_path / "pytorch_model.bin").write_bytes(b"not a pickle")
    name, subject = resolve(tmp_path)
    assert (name, subject.kind) == (str(tmp_path), LlamaForCausalLM)
    assert subject.config.hidden_act == "relu"
    assert sum(weight.numel() for weight in subject.model.parameters()) < 100_000
    _, hybrid = resolve("qwen3_next")
    assert set(hybrid.config.layer_types) == {"linear_attention", "full_attention"}


def test_a_configuration_is_used_as_it_is() -> None:
    config = GPT2Config(n_embd=24, n_head=2, n_layer=1, vocab_size=50, bos_token_id=1, eos_token_id=2)
    assert resolve(config)[1].model.config.n_embd == 24


def test_a_run_folder_is_checked(tmp_path: Path) -> None:
    config = LongspanConfig(mixers=["linear"], causal=True, dim=64, heads=2, depth=3, vocab_size=300)
    LongspanForCausalLM(config).save_pretrained(tmp_path)
    report = check_model(tmp_path, only=["cached-steps", "padding-on-the-left"])
    assert set(outcomes(report).values()) == {"passed"}


def test_code_of_a_folder_is_not_executed(tmp_path: Path) -> None:
    values = {"model_type": "mine", "auto_map": {"AutoConfig": "code.Mine"}, "architectures": ["Mine"]}
    (tmp_path / "config.json").write_text(json.dumps(values))
    (tmp_path / "code.py").write_text("raise SystemExit('executed')")
    with pytest.raises(UserError, match=r"its own code is not executed"):
        check_model(tmp_path)


def test_other_attributes_of_a_folder_are_not_read(tmp_path: Path) -> None:
    """`attn_implementation` may name a kernel to download, and `quantization_config` a package to import."""
    values: dict[str, Any] = {
        "model_type": "llama",
        "attn_implementation": "someone/kernel",
        "quantization_config": {"a": 1},
    }
    values |= {"_attn_implementation": "someone/kernel", "generate": "no", "vocab_size": 99}
    (tmp_path / "config.json").write_text(json.dumps(values))
    config = resolve(tmp_path)[1].config
    assert not hasattr(config, "quantization_config")
    assert not hasattr(config, "generate")
    assert "someone" not in str(config._attn_implementation)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("mamab", "there is no folder, model type or class 'mamab'; did you mean 'mamba'?"),
        ("./mamba", "there is no folder './mamba'"),
        ("GPT2LMHeadModels", "did you mean 'GPT2LMHeadModel'?"),
        (BertModel, "expected a class with logits for each token, got BertModel"),
        ("vit", "expected a model with logits for each token, got 'vit'"),
        (PreTrainedConfig(), "expected a model with logits for each token"),
        (
            BertModel(BertConfig(hidden_size=8, num_attention_heads=1, num_hidden_layers=1, vocab_size=9)),
            "expected a class, a configuration or a name of a model, got an object of BertModel; give BertModel or its "
            "config",
        ),
        (7, "got an object of int; give a model type such as 'mamba'"),
        (BertConfig(hidden_size=7), "expected a tiny model of 'bert'"),
    ],
)
def test_mistakes_are_sentences(model: Any, message: str) -> None:
    with pytest.raises(UserError) as raised:
        check_model(model)
    assert message in str(raised.value)


def test_unknown_checks_are_refused() -> None:
    with pytest.raises(UserError, match=r"there is no check 'beam'; did you mean 'beams'\?"):
        check_model("gpt2", only=["beam"])


def test_each_check_says_what_it_promises() -> None:
    promises = model_checks()
    assert [*promises] == [*CHECKS]
    assert all(promise.endswith(".") for promise in promises.values())


def test_a_report_is_json(tmp_path: Path) -> None:
    report = check_model(T5Config(**_TINY_T5), only=["other-rows", "packing"])
    found = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert [check["outcome"] for check in found["checks"]] == ["passed", "not applicable"]
    assert {"torch", "transformers"} == set(found["versions"])
    assert "other-rows" in report._repr_html_()


_TINY_T5: dict[str, Any] = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_heads": 4, "num_layers": 1, "vocab_size": 40}


class PassesOn(GPT2LMHeadModel):
    """A model whose forward names no cache."""

    def forward(self, *given: Any, **more: Any) -> Any:
        return super().forward(*given, **more)


def test_caches_are_found_where_a_model_passes_on_what_it_does_not_name() -> None:
    report = check_model(PassesOn, only=["cached-steps", "cached-chunks"])
    assert [check.outcome for check in report.checks] == ["passed", "passed"]
