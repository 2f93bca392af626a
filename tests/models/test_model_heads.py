"""What every head shares: losses by number of items, and arguments that are refused."""

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import Trainer, TrainerCallback, TrainingArguments

from longspan import UserError, models
from longspan.data.batches.streams import Stream
from longspan.models import (
    LongspanForAudioClassification,
    LongspanForAudioFrameClassification,
    LongspanForCausalLM,
    LongspanForDocumentPairs,
    LongspanForEvidence,
    LongspanForGraphClassification,
    LongspanForImageClassification,
    LongspanForMaskedLM,
    LongspanForNodeClassification,
    LongspanForQuestionAnswering,
    LongspanForRecommendation,
    LongspanForSeq2SeqLM,
    LongspanForSequenceClassification,
    LongspanForTokenClassification,
    LongspanModel,
)
from longspan.models.model import LongspanPreTrainedModel
from longspan.models.parts.losses import mean_loss
from longspan.training.lengths import Collator

FRAMES = {"input_features": Stream("float32", width=3, mask="attention_mask")}
PATCHES = {"pixel_values": Stream("uint8", width=4, mask="attention_mask"), "coordinates": Stream(width=2)}
NODES = {
    "nodes": Stream(mask="attention_mask"),
    "columns": Stream(),
    "values": Stream("float32"),
    "places": Stream("float32", width=2),
    "edges": Stream(width=2, joined=True),
}
PAIRS = {"input_ids": Stream(mask="attention_mask"), "second_ids": Stream(mask="second_mask")}
EACH = {"labels": Stream(fill=-100)}
#: What heads read that read other streams than one of tokens.
STREAMS: dict[Any, dict[str, Stream]] = {
    LongspanForAudioClassification: FRAMES,
    LongspanForAudioFrameClassification: FRAMES | EACH,
    LongspanForDocumentPairs: PAIRS,
    LongspanForGraphClassification: NODES,
    LongspanForImageClassification: PATCHES,
    LongspanForNodeClassification: NODES | EACH,
}
OF_GRAPHS = {"mixers": ["graph"], "embeddings": {"kind": "nodes", "node_features": 5, "place_features": 2}}
#: Their settings, where the defaults do not fit.
SETTINGS: dict[Any, dict[str, Any]] = {
    LongspanForAudioClassification: {"channels": 3, "kernel": 3},
    LongspanForAudioFrameClassification: {"channels": 3, "kernel": 3},
    LongspanForGraphClassification: OF_GRAPHS,
    LongspanForImageClassification: {"channels": 4, "patch": 2, "side": 3, "stem": 4},
    LongspanForNodeClassification: OF_GRAPHS | {"propagation_steps": 2},
}
#: Those that read something else than one row of tokens, or more. What evidence and recommendation learn from are
#: questions and candidates, which their own tests count.
OTHERS = [*STREAMS, LongspanForEvidence, LongspanForRecommendation]
HEADS = [
    head
    for head in vars(models).values()
    if isinstance(head, type)
    and issubclass(head, LongspanPreTrainedModel)
    and head not in (LongspanPreTrainedModel, LongspanModel, *OTHERS)
]
every_head = pytest.mark.parametrize("head", HEADS)
ROWS, LENGTH, LABELS = 16, 9, 3
PROBLEMS = ("single_label_classification", "multi_label_classification", "regression")


def build(head: Any, **changes: Any) -> Any:
    torch.manual_seed(2)
    settings: dict[str, Any] = {"vocab_size": 30, "dim": 8, "heads": 2, "depth": 1, "dropout": 0.0}
    settings |= {"num_labels": LABELS, "causal": head is LongspanForCausalLM, "initializer_range": 0.3}
    settings |= {"bos_token_id": 1} if head is LongspanForSeq2SeqLM else SETTINGS.get(head, {})
    return head(head.configured(**settings | changes))


def rows(head: Any, problem: str | None = None) -> list[dict[str, Tensor]]:
    """Rows of several lengths with very different numbers of labels; some have none."""
    made = []
    for number in range(ROWS):
        ids = torch.randint(1, 30, (LENGTH,))
        if head is LongspanForQuestionAnswering:
            labels = torch.tensor([-100, -100] if number % 5 == 4 else [number % 3, 1 + number % 4])
        elif head is not LongspanForSequenceClassification:
            known = ids % LABELS if head is LongspanForTokenClassification else ids
            labels = known.masked_fill(torch.rand(LENGTH) < number / ROWS, -100)
        elif problem in (None, "single_label_classification"):
            labels = torch.tensor(-100 if number % 5 == 4 else number % LABELS)
        elif problem == "multi_label_classification":
            labels = torch.randint(0, 2, (LABELS,)).float().masked_fill(torch.rand(LABELS) < number / ROWS, -100)
        else:
            labels = torch.randn(LABELS)
        made.append(
            {"input_ids": ids, "attention_mask": (torch.arange(LENGTH) < 4 + number % 6).long(), "labels": labels}
        )
    return made


def rows_of_streams(head: Any, problem: str | None = None) -> list[dict[str, Any]]:
    """Rows of several lengths for heads that read other streams than one of tokens, with very different numbers of
    labels; some have none."""
    random, made = np.random.default_rng(1), []
    for number in range(ROWS):
        length = 4 + number % 6
        if FRAMES.keys() <= STREAMS[head].keys():
            row: dict[str, Any] = {"input_features": random.standard_normal((length, 3))}
            places = -(-length // 2)
        elif STREAMS[head] is PAIRS:
            row = {"input_ids": random.integers(1, 30, length), "second_ids": random.integers(1, 30, 9 - number % 7)}
        elif STREAMS[head] is PATCHES:
            coordinates = [divmod(place, 3) for place in range(length)]
            row = {"pixel_values": random.integers(0, 256, (length, 4)), "coordinates": coordinates}
        else:
            sizes, places = random.integers(0, 4, length), length
            row = {"nodes": sizes, "columns": random.integers(0, 5, sizes.sum())}
            row |= {"values": random.standard_normal(sizes.sum()), "places": random.standard_normal((length, 2))}
            row["edges"] = random.integers(0, length, (number % 7, 2))
        if "labels" in STREAMS[head]:
            labels = random.integers(0, LABELS, places)
            row["labels"] = np.where(random.random(places) < number / ROWS, -100, labels)
        else:
            row["labels"] = np.int64(-100 if number % 5 == 4 else number % LABELS)
        if problem == "mixed":
            row |= {"mixed_labels": np.where(row["labels"] < 0, -100, random.integers(0, LABELS))}
            row |= {"mixed_shares": np.float32(random.random())}
        made.append(row)
    return made


class Gradients(TrainerCallback):
    """Keeps the gradients of each optimiser step."""

    def __init__(self) -> None:
        self.steps: list[dict[str, Tensor]] = []

    def on_pre_optimizer_step(self, *_: Any, model: Any, **__: Any) -> None:
        self.steps.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})


def train(
    model: Any, data: Any, folder: Path, batch_size: int, accumulated: int, collator: Any = None
) -> tuple[float, dict[str, Tensor]]:
    """Return the logged loss and the gradients of one optimiser step."""
    gradients = Gradients()
    arguments = TrainingArguments(
        str(folder),
        per_device_train_batch_size=batch_size,
        gradient_accumulation_steps=accumulated,
        max_steps=1,
        logging_steps=1,
        max_grad_norm=0.0,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    trainer = Trainer(model, arguments, train_dataset=data, data_collator=collator, callbacks=[gradients])
    trainer.train()
    return trainer.state.log_history[0]["loss"], gradients.steps[0]


CASES = [
    *((head, None, 0.0) for head in HEADS),
    *((LongspanForSequenceClassification, problem, 0.0) for problem in PROBLEMS),
    (LongspanForSequenceClassification, None, 0.2),
    (LongspanForSeq2SeqLM, None, 0.2),
    *((head, None, 0.0) for head in STREAMS),
    (LongspanForNodeClassification, None, 0.2),
    (LongspanForDocumentPairs, None, 0.2),
    (LongspanForImageClassification, None, 0.2),
    (LongspanForImageClassification, "mixed", 0.2),
]


@pytest.mark.slow
@pytest.mark.parametrize(("head", "problem", "smoothing"), CASES)
def test_accumulated_batches_are_one_large_batch(
    head: Any, problem: str | None, smoothing: float, tmp_path: Path
) -> None:
    """Known failure elsewhere: losses and gradients multiplied by the number of accumulated batches."""
    data, found = (rows_of_streams if head in STREAMS else rows)(head, problem), []
    collator = Collator(STREAMS[head]) if head in STREAMS else None
    for batch_size, accumulated in ((16, 1), (1, 16), (4, 4)):
        own = {"label_smoothing": smoothing} if smoothing else {}
        model = build(head, problem_type=None if problem == "mixed" else problem, **own)
        found.append(train(model, data, tmp_path, batch_size, accumulated, collator))
    (loss, gradients), *others = found
    # Trainer removes what a head's signature does not name. Without a stream, some embeddings would not learn.
    embeddings = [name for name, _ in model.named_parameters() if name.startswith("longspan.embeddings.")]
    assert embeddings
    assert [name for name in embeddings if name not in gradients or not gradients[name].any()] == []
    for other_loss, other_gradients in others:
        # Float32 sums of 16 parts in another order.
        assert other_loss == pytest.approx(loss, rel=1e-5)
        assert gradients.keys() == other_gradients.keys()
        for name, gradient in gradients.items():
            torch.testing.assert_close(other_gradients[name], gradient, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("head", [*HEADS, *OTHERS])
def test_heads_name_what_they_take(head: Any) -> None:
    parameters = inspect.signature(head.forward).parameters
    # The streams of other embeddings, whose names are checked.
    assert not any(p.kind is p.VAR_KEYWORD for name, p in parameters.items() if name != "streams")
    assert {"labels", "num_items_in_batch", "output_attentions", "output_hidden_states"} <= parameters.keys()
    assert build(head).accepts_loss_kwargs
    assert not build(LongspanModel).accepts_loss_kwargs


@pytest.mark.parametrize("head", [LongspanModel, *HEADS])
def test_arguments_without_effect_are_refused(head: Any) -> None:
    model, ids = build(head).eval(), torch.randint(1, 30, (2, LENGTH))
    with pytest.raises(TypeError, match="segments"):
        model(ids, segments=ids)
    with pytest.raises(UserError, match="as mixers return no attention maps, got True"):
        model(ids, output_attentions=True)
    model.config.output_attentions = True
    with pytest.raises(UserError, match="return no attention maps"):
        model(ids)
    model.config.output_attentions = False
    target = {"decoder_input_ids": ids} if head is LongspanForSeq2SeqLM else {}
    model(ids, output_attentions=None, output_hidden_states=None, return_dict=None, **target)


def test_a_classifier_refuses_packed_documents() -> None:
    ids = torch.randint(1, 30, (2, LENGTH))
    with pytest.raises(UserError, match="one document per row to classify, got packed documents"):
        build(LongspanForSequenceClassification)(ids, document_ids=torch.zeros_like(ids))


@pytest.mark.parametrize("head", [LongspanForMaskedLM, LongspanForCausalLM, LongspanForSeq2SeqLM])
def test_labels_that_are_no_tokens_are_refused(head: Any) -> None:
    model, ids = build(head), torch.randint(1, 30, (2, LENGTH))
    target = {"decoder_input_ids": ids} if head is LongspanForSeq2SeqLM else {}
    for labels in (ids[:, 1:], ids[0], ids.float(), ids > 3):
        with pytest.raises(UserError, match="expected labels as integers of shape"):
            model(ids, labels=labels, **target)
    if head is LongspanForCausalLM:
        with pytest.raises(UserError, match="expected shift_labels as integers of shape"):
            model(ids, shift_labels=ids[:, 1:])


def test_losses_divided_by_items() -> None:
    losses = torch.tensor([1.0, 2.0, 4.5])
    assert mean_loss(losses, 3, None) == 2.5
    assert mean_loss(losses, torch.tensor(2), None) == 3.75
    for count in (10, torch.tensor(10), torch.tensor([[10.0]])):
        assert mean_loss(losses, 3, count) == 0.75
        assert mean_loss(losses, 3, count).shape == ()
    # Nothing to predict is no loss, not 0 / 0.
    assert mean_loss(torch.zeros(3), 0, None) == 0
    assert mean_loss(torch.zeros(3), 0, torch.tensor(0)) == 0
