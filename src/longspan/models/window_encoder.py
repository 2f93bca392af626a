"""A pretrained model of the Hub that reads documents of any length in overlapping windows: `WindowEncoder`."""

import hashlib
import inspect
import json
import warnings
from collections.abc import Mapping
from dataclasses import fields
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    MODEL_MAPPING,
    PreTrainedConfig,
    PreTrainedModel,
)

from longspan.errors import UserError, first_line
from longspan.models.config import LongspanConfig

#: Tokens that the encoder reads at a time: a base model's layer holds some hundred megabytes for them.
TOKENS_AT_A_TIME = 8192
#: Type of stored outputs: eleven binary digits are enough, given an encoder's dropout in its own training.
KEPT = torch.float16
#: Increase this when the same weights and windows give other outputs.
_VERSION = 1
#: Models that have compiled code downloaded when they are built on a machine with a GPU.
_COMPILED = ("mra", "yoso")
#: Models whose outputs at real tokens depend on the amount of padding.
_PADDED = ("convbert", "funnel", "nystromformer")
#: More layers than any model has take minutes to build, even without weights.
_MOST_LAYERS = 1000
#: The settings of an encoder that is not known yet, for a model that is built to check the rest of its own.
STAND_IN: dict[str, Any] = {
    "model_type": "bert",
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "intermediate_size": 8,
    "max_position_embeddings": 1 << 20,
}
_COMMON = {field.name for field in fields(PreTrainedConfig)}


def described(config: PreTrainedConfig) -> dict[str, Any]:
    """Fields of an encoder's configuration that `WindowEncoder` needs, as JSON.

    These are the fields that its class declares: other keys of a config.json may name code or files.

    Raises:
        UserError: It is no model that reads one text.
    """
    _check(config)
    own = {field.name for field in fields(config)} - _COMMON
    values = config.to_dict()
    return {"model_type": config.model_type, **{name: values[name] for name in sorted(own) if name in values}}


def configured(values: Mapping[str, Any]) -> PreTrainedConfig:
    """Return the configuration that `described` describes. Nothing is imported from elsewhere, read or downloaded.

    Raises:
        UserError: It is not one.
    """
    kind = values.get("model_type")
    if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
        raise UserError(f"expected an encoder that transformers knows, got one of type {kind!r}; use another.")
    config_class = CONFIG_MAPPING[kind]
    own = {field.name for field in fields(config_class)} - _COMMON
    unknown = sorted(values.keys() - own - {"model_type"})
    if unknown:
        raise UserError(
            f"expected the settings of a {config_class.__name__} in encoder_config, got {unknown[0]!r}; restore the "
            "configuration."
        )
    try:
        config: PreTrainedConfig = config_class(**{name: values[name] for name in values if name != "model_type"})
    except UserError:
        raise
    # transformers checks values by its own rules, with errors of many classes.
    except Exception as error:
        told = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        raise UserError(
            f"expected the settings of a {config_class.__name__} in encoder_config, got an error ({told}); restore the "
            "configuration."
        ) from error
    _check(config)
    return config


def _check(config: PreTrainedConfig) -> None:
    """Raise UserError unless `AutoModel` makes of a configuration a model that reads one text."""
    what = f"a model of type {config.model_type!r}"
    advice = "use one such as ModernBERT, BERT or RoBERTa."
    if isinstance(config, LongspanConfig) and config.embeddings.pretrained:
        raise UserError(
            "expected an encoder that reads tokens, got a longspan model that has one itself "
            f"({config.embeddings.pretrained!r}); "
            "use that one."
        )
    if config.is_encoder_decoder:
        raise UserError(f"expected an encoder alone, got {what}, which has a decoder too; {advice}")
    known = type(config) in MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING and type(config) in MODEL_MAPPING
    if not known or config.sub_configs or config.model_type in _COMPILED:
        raise UserError(f"expected an encoder of text, got {what}; {advice}")
    if config.model_type in _PADDED:
        raise UserError(
            f"expected an encoder for which padding changes nothing, got {what}, whose outputs depend on it; {advice}"
        )
    reads = inspect.signature(_model_class(config).forward).parameters
    sizes = [getattr(config, name, None) for name in ("vocab_size", "hidden_size")]
    if not {"input_ids", "attention_mask"} <= reads.keys() or None in sizes:
        raise UserError(f"expected an encoder that takes input_ids and attention_mask, got {what}; {advice}")
    layers = getattr(config, "num_hidden_layers", 0)
    if not isinstance(layers, int) or layers > _MOST_LAYERS:
        raise UserError(f"expected an encoder of at most {_MOST_LAYERS} layers, got {layers}; {advice}")


def _model_class(config: PreTrainedConfig) -> type[PreTrainedModel]:
    found = MODEL_MAPPING[type(config)]
    # Some have several, the usual one first.
    return found[0] if isinstance(found, tuple | list) else found


def extras(config: PreTrainedConfig) -> dict[str, Any]:
    """Return the arguments that a model is built with, so that it has no layer that is not used."""
    takes = inspect.signature(_model_class(config).__init__).parameters
    return {"add_pooling_layer": False} if "add_pooling_layer" in takes else {}


class WindowEncoder(nn.Module):
    """An `AutoModel` that reads each document in windows and returns its outputs for each token.

    The windows of a document of n tokens are evenly spread, with at least `encoder_overlap` tokens in common. Each has
    the special tokens of the encoder around it. A document that fits into one window is read just as the encoder reads
    it. Each token is taken from the window in which it is farther from the nearer end, not counting the ends of the
    document. Of the tokens that two neighbouring windows share, the first half is thus from the first.

    `forward` takes token ids (b, t), with or without the special tokens at the ends of documents, and returns (b, t,
    width), zero at padding. The `attention_mask` (b, t) is 1 at real tokens, with padding on either side;
    `document_ids` (b, t) number packed documents. If the encoder is not trained, it stays as in evaluation, has no
    gradients, and returns float16, as outputs on disk are kept.

    Cost: O(t · window) for an encoder with softmax attention.

    Args:
        settings: those of the embeddings, with `encoder_config` and `encoder_special_ids`.
        pad_id: the id of padding.

    Attributes:
        model: the pretrained model.
        width: that of its outputs.
        window: tokens in a window, special tokens included.
        overlap: tokens that neighbouring windows share at least.

    Raises:
        UserError: for an encoder that was not read, none of text, or windows that it cannot read.
    """

    def __init__(self, settings: Any, pad_id: int = 0) -> None:
        super().__init__()
        if settings.encoder_config is None:
            raise UserError(
                f"expected the settings of the encoder {settings.encoder!r} in encoder_config, got none; train with "
                "model.encoder=NAME, which reads it, or see longspan.data.text.encoders.settings."
            )
        encoder_config = configured(settings.encoder_config)
        encoder_config.use_cache = False
        try:
            with warnings.catch_warnings():
                # About settings that pretrained models come with, such as dropout between the layers of one.
                warnings.simplefilter("ignore")
                self.model = _model_class(encoder_config)._from_config(encoder_config, **extras(encoder_config))
        except (UserError, MemoryError):
            raise
        # Sizes that do not fit each other raise anything.
        except Exception as error:
            raise UserError(
                f"expected an encoder that can be built, got the settings of {settings.encoder!r}, which cannot "
                f"({first_line(error)}); use another."
            ) from error
        self.width = int(encoder_config.hidden_size)
        self.tokens = int(encoder_config.vocab_size)
        self.trained = settings.train_encoder
        before, after = settings.encoder_special_ids or ([], [])
        self.special = (np.array(before, dtype=np.int64), np.array(after, dtype=np.int64))
        self.pad_id = pad_id if pad_id < self.tokens else 0
        most = longest(self.model)
        self.window, self.overlap = _sizes(settings, most, len(before) + len(after))
        self.train()

    def train(self, mode: bool = True) -> "WindowEncoder":
        if not self.trained:
            # Loading makes new parameters, and sets the mode afterwards.
            self.requires_grad_(False)
        return super().train(mode and self.trained)

    @torch.compiler.disable
    def forward(
        self,
        ids: Int[Tensor, "b t"],
        mask: Bool[Tensor, "b t"] | None = None,
        document_ids: Int[Tensor, "b t"] | None = None,
    ) -> Float[Tensor, "b t d"]:
        numbers = ids.cpu().numpy()
        plan = windows(
            # A task may add special tokens to the encoder's own, which it reads as padding that is not left out.
            np.where(numbers < self.tokens, numbers, self.pad_id),
            None if mask is None else mask.cpu().numpy(),
            None if document_ids is None else document_ids.cpu().numpy(),
            content=self.window - sum(map(len, self.special)),
            overlap=self.overlap,
            special=self.special,
            pad_id=self.pad_id,
        )
        if self.trained:
            found = self._encode_windows(plan, ids.device)
        else:
            # What is kept on disk does not depend on who else computes in which precision.
            with torch.no_grad(), torch.autocast(ids.device.type, enabled=False):
                found = self._encode_windows(plan, ids.device)
        places = torch.from_numpy(plan.tokens).to(ids.device)
        with torch.autocast(ids.device.type, enabled=False):
            outputs = found.new_zeros(ids.numel(), self.width).index_copy(0, places, found)
        return outputs.view(*ids.shape, self.width)

    def _encode_windows(self, plan: "Windows", device: torch.device) -> Tensor:
        """Return the outputs at the real tokens, (n, width), reading a batch of windows at a time."""
        found = [torch.zeros(0, self.width, device=device, dtype=self.model.dtype if self.trained else KEPT)]
        rows, length = plan.ids.shape
        if not rows and self.trained:
            # In several processes all weights take part in each step, also where all rows are padding.
            one = torch.full((1, 1), self.pad_id, device=device)
            read = self.model(input_ids=one, attention_mask=torch.ones_like(one), return_dict=True)
            found.append(read[0].flatten(0, 1)[:0])
        step = max(1, TOKENS_AT_A_TIME // max(1, length))
        for first in range(0, rows, step):
            mask = plan.mask[first : first + step]
            longest = int(mask.sum(1).max())
            ids = torch.from_numpy(plan.ids[first : first + step, :longest]).to(device)
            read = self.model(
                input_ids=ids, attention_mask=torch.from_numpy(mask[:, :longest]).long().to(device), return_dict=True
            )
            # Tokens are in the order of their windows.
            start, end = np.searchsorted(plan.windows, (first, first + step))
            where = (plan.windows[start:end] - first) * longest + plan.positions[start:end]
            outputs = read[0].flatten(0, 1)[torch.from_numpy(where).to(device)]
            found.append(outputs if self.trained else to_storage_type(outputs))
        return torch.cat(found)

    def fingerprint(self) -> str:
        """Return a hash of everything that the outputs of an encoder that is not trained depend on besides the ids."""
        facts = [_VERSION, transformers.__version__, str(KEPT), self.window, self.overlap, self.pad_id]
        facts += [each.tolist() for each in self.special]
        facts += [described(self.model.config)]
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode())
        for name, weight in sorted(self.model.state_dict().items()):
            digest.update(f"{name} {weight.dtype} {tuple(weight.shape)}".encode())
            digest.update(weight.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
        return digest.hexdigest()


def to_storage_type(outputs: Tensor) -> Tensor:
    """Return outputs as they are kept on disk; what is too large becomes the largest number."""
    most = torch.finfo(KEPT).max
    return outputs.clamp(-most, most).to(KEPT)


def longest(model: PreTrainedModel) -> int | None:
    """Maximum number of tokens of one input, None if the configuration names no limit."""
    most = getattr(model.config, "max_position_embeddings", None)
    # XLNet says -1.
    sizes = [int(most)] if most and most > 0 else []
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding) and name.endswith("position_embeddings"):
            # RoBERTa and others begin to count after the number of the padding token.
            sizes.append(module.num_embeddings - (0 if module.padding_idx is None else module.padding_idx + 1))
    return min(sizes, default=None)


def _sizes(settings: Any, most: int | None, special: int) -> tuple[int, int]:
    """Return the size of windows and their overlap."""
    window = settings.encoder_window if settings.encoder_window is not None else most
    if window is None:
        raise UserError(
            f"expected the size of windows for the encoder {settings.encoder!r}, which names no longest input, got "
            "none; set model.encoder_window, such as 512."
        )
    if most is not None and window > most:
        raise UserError(
            f"expected model.encoder_window to be at most {most}, which the encoder {settings.encoder!r} can read, got "
            f"{window}; choose a smaller one."
        )
    content = window - special
    overlap = content // 4 if settings.encoder_overlap is None else settings.encoder_overlap
    if content <= overlap:
        raise UserError(
            f"expected windows of more tokens than they share ({overlap}) and the encoder's {special} special tokens, "
            f"got model.encoder_window={window}; choose a larger one, or a smaller model.encoder_overlap."
        )
    return window, overlap


class Windows(NamedTuple):
    """Windows of a batch of n real tokens.

    Attributes:
        ids: (w, l) the ids of each window, special tokens included, padded on the right.
        mask: (w, l) which of them are real.
        tokens: (n,) where the real tokens are in the batch, in the order of reading, as numbers in b·t.
        windows: (n,) the window that each is taken from, in ascending order.
        positions: (n,) and where it is there.
    """

    ids: np.ndarray
    mask: np.ndarray
    tokens: np.ndarray
    windows: np.ndarray
    positions: np.ndarray


def windows(
    ids: np.ndarray,
    mask: np.ndarray | None,
    document_ids: np.ndarray | None,
    *,
    content: int,
    overlap: int,
    special: tuple[np.ndarray, np.ndarray],
    pad_id: int,
) -> Windows:
    """Cut documents into windows.

    Args:
        ids: (b, t) the tokens.
        mask: (b, t) which of them are real; None for all.
        document_ids: (b, t) numbers of packed documents; None for one in each row.
        content: tokens in a window, without special ones.
        overlap: tokens that neighbouring windows share at least.
        special: the ids before and after the content of a window; documents may have them at their ends.
        pad_id: the id of padding in windows.
    """
    before, after = special
    tokens = np.arange(ids.size) if mask is None else np.flatnonzero(mask)
    rows = tokens // max(1, ids.shape[1])
    ends = rows[1:] != rows[:-1]
    if document_ids is not None:
        numbers = document_ids.reshape(-1)[tokens]
        ends |= numbers[1:] != numbers[:-1]
    bounds = [0, *(np.flatnonzero(ends) + 1).tolist(), len(tokens)] if len(tokens) else [0]
    found: list[np.ndarray] = []
    where, positions = np.zeros(len(tokens), dtype=np.int64), np.zeros(len(tokens), dtype=np.int64)
    for first, end in pairwise(bounds):
        document = ids.reshape(-1)[tokens[first:end]]
        head = len(before) if np.array_equal(document[: len(before)], before) else 0
        rest = document[head:]
        tail = len(after) if len(after) and np.array_equal(rest[-len(after) :], after) else 0
        inner = rest[: len(rest) - tail]
        starts = _starts(len(inner), content, overlap)
        # The first token that is taken from the next window.
        turns = (starts[1:] + np.minimum(starts[:-1] + content, len(inner)) + 1) // 2
        owner = np.searchsorted(turns, np.arange(len(inner)), side="right")
        last = len(starts) - 1
        where[first:end] = len(found) + np.concatenate([np.zeros(head, int), owner, np.full(tail, last)])
        inside = np.arange(len(inner)) - starts[owner]
        behind = len(before) + len(inner) - starts[last] + np.arange(tail)
        positions[first:end] = np.concatenate([np.arange(head), len(before) + inside, behind])
        found += [np.concatenate([before, inner[start : start + content], after]) for start in starts]
    lengths = np.array([len(each) for each in found], dtype=np.int64)
    padded = np.full((len(found), int(lengths.max(initial=0))), pad_id, dtype=np.int64)
    real = np.arange(padded.shape[1]) < lengths[:, None]
    if found:
        padded[real] = np.concatenate(found)
    return Windows(padded, real, tokens, where, positions)


def _starts(tokens: int, content: int, overlap: int) -> np.ndarray:
    """Return where the windows of a document begin, evenly spread."""
    if tokens <= content:
        return np.zeros(1, dtype=np.int64)
    count = 1 + -(-(tokens - content) // (content - overlap))
    return np.arange(count) * (tokens - content) // (count - 1)
