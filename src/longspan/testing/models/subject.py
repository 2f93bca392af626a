"""Subject of the checks: a class of models, a tiny configuration, inputs, and how outputs are compared."""

import contextlib
import functools
import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from longspan.testing.models.sizes import VOCABULARY

Task = Literal["causal", "masked", "seq2seq"]

LENGTH = 21
"""Positions of a row: longer than windows and chunks, and no multiple of them."""
LENGTHS = (21, 13, 17)
"""Real positions of padded rows."""
#: Float32 rounds to 6e-8, and a few layers amplify that. Models without faults stay below a fifth of this.
TOLERANCE = 1e-4
#: Fields of outputs that hold what a cached step continues from, and the names under which `forward` takes them.
CACHES = ("cache", "past_key_values", "cache_params", "state", "past_buckets_states")


class NotApplicable(Exception):
    """There is nothing to check, for the reason in the message."""


@dataclass(frozen=True, eq=False)
class Subject:
    """A class of models with a tiny configuration, and one implementation of its attention.

    Attributes:
        kind: the class.
        config: its configuration.
        task: what it is for.
        attention: "eager" or "sdpa"; None for what the class takes by itself.
    """

    kind: type[PreTrainedModel]
    config: PreTrainedConfig
    task: Task
    attention: str | None = None

    def build(self, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
        """Return a new model in evaluation mode, always with the same weights; see `_spread`."""
        config = type(self.config).from_dict(self.config.to_dict())
        if self.attention is not None:
            config._attn_implementation = self.attention
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            model = self.kind(config)
            _spread(model)
        return model.to(dtype).eval()

    @functools.cached_property
    def model(self) -> PreTrainedModel:
        """The model in float32, for checks that do not change it."""
        return self.build()

    @functools.cached_property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        """The arguments of `forward`, with those that it passes on to the model without a head."""
        own = dict(inspect.signature(self.kind.forward).parameters)
        if any(one.kind is one.VAR_KEYWORD for one in own.values()):
            own = {**inspect.signature(self.model.base_model.forward).parameters, **own}
        return own

    def accepts(self, name: str) -> bool:
        """Say whether `forward` has an argument of that name."""
        return name in self.parameters

    def require(self, name: str) -> None:
        """Raise NotApplicable unless `forward` has an argument of that name."""
        if not self.accepts(name):
            raise NotApplicable(f"forward takes no {name}")

    @functools.cached_property
    def source(self) -> str:
        """The code of the modules in which the class and its model without a head are; "" where there is none."""
        found = []
        for kind in {self.kind, type(self.model.base_model)}:
            with contextlib.suppress(OSError, TypeError):
                found.append(inspect.getsource(sys.modules[kind.__module__]))
        return "\n".join(found)

    @property
    def stateful(self) -> bool:
        """Whether it has recurrent layers, as its class or its kinds of layers say."""
        kinds = str(self.config.to_dict())
        return bool(getattr(self.kind, "_is_stateful", False)) or "linear_attention" in kinds or "'conv'" in kinds

    def draw(self, rows: int, length: int = LENGTH, seed: int = 0) -> Tensor:
        """Return random tokens (rows, length), none of them special."""
        generator = torch.Generator().manual_seed(seed)
        return torch.randint(3, min(VOCABULARY, self.vocabulary), (rows, length), generator=generator)

    @property
    def vocabulary(self) -> int:
        """The number of tokens."""
        return int(self.model.get_input_embeddings().weight.shape[0])

    def read(
        self, ids: Tensor, mask: Tensor | None = None, model: PreTrainedModel | None = None, **more: Any
    ) -> Tensor:
        """Return logits (b, t, vocabulary) of a whole pass; those of the decoder, for an encoder and a decoder.

        Args:
            ids: (b, t) tokens.
            mask: (b, t) of 1 for real positions.
            model: the model, by default the one in float32.
            more: further arguments of `forward`.
        """
        if mask is not None:
            more["decoder_attention_mask" if self.task == "seq2seq" else "attention_mask"] = mask
        if self.accepts("use_cache"):
            more.setdefault("use_cache", False)
        model = self.model if model is None else model
        return model(**self.named(ids), **more).logits

    def named(self, ids: Tensor) -> dict[str, Tensor]:
        """Return the arguments with which `forward` reads the tokens; each row has the same source."""
        if self.task == "seq2seq":
            return {"input_ids": self.draw(1, seed=9).expand(len(ids), -1), "decoder_input_ids": ids}
        return {"input_ids": ids}

    def read_padded(self, ids: Tensor, mask: Tensor | None, positions: Tensor | None = None) -> Tensor:
        """Return logits at the positions whose padding is checked: of the source, where there is an encoder."""
        if self.task != "seq2seq":
            return self.read(ids, mask, **({} if positions is None else {"position_ids": positions}))
        target = self.draw(1, seed=8).expand(len(ids), -1)
        masked = {} if mask is None else {"attention_mask": mask}
        return self.model(input_ids=ids, decoder_input_ids=target, use_cache=False, **masked).logits

    @property
    def counts_positions(self) -> bool:
        """Whether `forward` takes `position_ids`."""
        return self.accepts("position_ids")


def _spread(model: PreTrainedModel) -> None:
    """Give every weight an influence on outputs that can be measured.

    A new model has biases of zero, norms of one and, with a deviation of 0.02, nearly constant attention. Faults that
    every trained model shows would stay below any tolerance.
    """
    for name, parameter in model.named_parameters():
        with torch.no_grad():
            if parameter.ndim < 2 or not parameter.is_floating_point():
                parameter.add_(0.1 * torch.randn_like(parameter))
                continue
            wanted = 1.0 if "embed" in name or "wte" in name else parameter.shape[-1] ** -0.5
            found = float(parameter.std())
            if not 0.5 * wanted < found < 3 * wanted and parameter.shape[-1] > 1 and "A_log" not in name:
                parameter.normal_(0, wanted)


def padded(ids: Tensor, lengths: Sequence[int], side: str, more: int, pad: int) -> tuple[Tensor, Tensor]:
    """Return rows cut to these lengths and padded to the longest and `more`, and their mask."""
    longest = max(lengths) + more
    out = torch.full((len(lengths), longest), pad)
    mask = torch.zeros_like(out)
    for row, length in enumerate(lengths):
        place = slice(longest - length, longest) if side == "left" else slice(0, length)
        out[row, place] = ids[row, :length]
        mask[row, place] = 1
    return out, mask


def positions_of(mask: Tensor) -> Tensor:
    """Return the position of each token among the real ones, as `generate` counts them."""
    return (mask.cumsum(-1) - 1).clamp_min(0)


def deviation(actual: Tensor, expected: Tensor) -> float:
    """Return the largest difference relative to the largest expected number; infinite if any is not finite."""
    if not bool(actual.isfinite().all() and expected.isfinite().all()):
        return float("inf")
    scale = float(expected.abs().max())
    return float((actual.double() - expected.double()).abs().max()) / max(scale, 1e-30)


def cuts(sizes: Sequence[int], length: int) -> Iterator[tuple[int, int]]:
    """Yield where parts of these sizes begin and end, up to `length`, the last size again and again."""
    begin = 0
    for number in range(length):
        end = min(length, begin + sizes[min(number, len(sizes) - 1)])
        yield begin, end
        if end == length:
            return
        begin = end


def without_dropout(model: PreTrainedModel) -> PreTrainedModel:
    """Set the rates of layers of dropout to 0."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return model
