"""Models that start with the weights of another run: `start_of` and `copy_weights`."""

import dataclasses
import re
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from longspan.errors import UserError
from longspan.models import LongspanModel
from longspan.models.heads.seq2seq import Seq2SeqSettings
from longspan.recipes.starting import TOKENS, shape_of
from longspan.tasks.base.task import Prepared, Recipe, Run
from longspan.verbs.runs import load_run

_TOKENS = tuple(f"embeddings.{name}" for name in ("table.weight", "words.begins", "words.spelling"))
"""What has a row for each token."""

_FREE = {
    *("depth", "mixers", "mixer_options", "causal", "forget", "rotary", "short_convolution", "ngrams", "ngram_buckets"),
    *("position", "max_positions", "position_period", "word_characters", "word_buckets"),
    *Seq2SeqSettings.shape,
}
"""The keys of a model's shape that may differ from those of the run: they add parts or leave some out."""

_DECODER = "decoder"
"""What an encoder-decoder model calls its decoder."""

_SHOWN = 6
"""How many parts are named on standard error."""


@dataclasses.dataclass(frozen=True)
class StartedFrom:
    """Parts that a model took from the run that it starts from.

    Attributes:
        run: The run folder.
        loaded: Names of the parts of the model that were loaded.
        new: Those that are new.
        left_out: Those of the run's model that the model lacks.
        parameters: Number of loaded parameters.
    """

    run: str
    loaded: list[str]
    new: list[str]
    left_out: list[str]
    parameters: int

    def announcement(self) -> str:
        """Return the sentence that says so."""
        decodes = any(_of_decoder(name) for name in (*self.loaded, *self.new))
        parts = [f"{self.parameters:,} weights ({_named(self.loaded, decodes)}) are those of {self.run}"]
        parts += [f"new: {_named(self.new, decodes)}"] if self.new else []
        parts += [f"left out: {_named(self.left_out, decodes)}"] if self.left_out else []
        return "; ".join(parts)


def start_of(recipe: Recipe) -> Run | None:
    """Return the run that a recipe starts from, or None for a new model.

    Nothing in its folder is executed.

    Raises:
        UserError: It cannot be loaded, or the recipe says something else of what it takes from it.
    """
    if not recipe.start_from:
        return None
    run = load_run(Path(recipe.start_from).expanduser())
    encoder = run.model.config.embeddings.pretrained
    if encoder is not None:
        raise UserError(
            f"expected a run with embeddings of its own to start from, got {recipe.start_from!r} with the pretrained "
            f"encoder {encoder!r}; read with that one by model.encoder."
        )
    for key in TOKENS:
        _agree(f"data.{key}", getattr(recipe.data, key, None), getattr(run.recipe.data, key, None), run)
    for key in shape_of(recipe.task):
        if key not in _FREE:
            _agree(f"model.{key}", recipe.model.get(key), run.model.config.setting(key), run)
    return run


def _agree(key: str, wanted: Any, found: Any, run: Run) -> None:
    if wanted is not None and wanted != found:
        raise UserError(
            f"expected {key}={_written(found)} as in {str(run.folder)!r}, which the model is to start from, got "
            f"{_written(wanted)}; leave it out, or start from another run."
        )


def _written(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)


def copy_weights(model: PreTrainedModel, run: Run, prepared: Prepared) -> StartedFrom:
    """Copy what fits of a run's weights into a new model.

    Embeddings and layers are copied; a layer with another mixer keeps its new one, and tokens that the run does not
    have keep their new vectors. The head is copied if both models are of one class and give the same labels. A decoder
    is a part of the head, though its layers too may have other mixers.

    Raises:
        UserError: The two read other tokens, or weights of the same part have other shapes.
    """
    prepared.processor.check_continues(run.processor, str(run.folder))
    own, found = _weights(model), _weights(run.model)
    copied = [name for name in own if name in found and _belongs(name, model, run.model)]
    grown, size = [], 0
    for name in copied:
        target, source = own[name].data, found[name]
        if target.shape != source.shape:
            # Special tokens that a task adds come last.
            of_tokens = name.removeprefix(f"{model.base_model_prefix}.") in _TOKENS
            if not of_tokens or target.shape[1:] != source.shape[1:]:
                raise UserError(
                    f"expected {name} of shape {tuple(source.shape)} as in {str(run.folder)!r}, which the model is to "
                    f"start from, got {tuple(target.shape)}; leave out the [model] keys that change it."
                )
            if target.is_floating_point():
                grown.append(f"{name} of {len(target) - len(source)} tokens")
            target = target[: len(source)]
        target.copy_(source)
        size += source.numel()
    return StartedFrom(
        str(run.folder),
        loaded=_whole_parts(copied, own),
        new=[*grown, *_whole_parts([name for name in own if name not in copied], own)],
        left_out=_whole_parts([name for name in found if name not in copied], found),
        parameters=size,
    )


def _weights(model: PreTrainedModel) -> dict[str, Tensor]:
    """Return parameters, tied ones once, and what else embeddings and layers save."""
    saved = model.state_dict()
    bodies = (f"{model.base_model_prefix}.", f"{_DECODER}.")
    body = {name: tensor for name, tensor in model.named_buffers() if name.startswith(bodies)}
    return dict(model.named_parameters()) | {name: tensor for name, tensor in body.items() if name in saved}


def _belongs(name: str, model: PreTrainedModel, other: PreTrainedModel) -> bool:
    """Say whether a weight that both models have means the same in both."""
    if not name.startswith(f"{model.base_model_prefix}."):
        config, its = model.config, other.config
        if type(model) is not type(other) or (config.id2label, config.problem_type) != (its.id2label, its.problem_type):
            return False
    block = re.match(rf"({model.base_model_prefix}|{_DECODER})\.backbone\.blocks\.(\d+)\.(mixer|cross_mixer)\.", name)
    if block is None:
        return True
    body, layer, part = block.groups()
    mixers = [getattr(getattr(one, body).config, f"{part}s") for one in (model, other)]
    own, its = (names[int(layer) % len(names)] for names in mixers)
    return bool(own == its)


def _whole_parts(names: Collection[str], every: Iterable[str]) -> list[str]:
    """Return the names of some weights of a model, and for those of a whole part of it that part's name."""
    given, others = set(names), [name.split(".") for name in every if name not in set(names)]
    mixed = {".".join(parts[:end]) for parts in others for end in range(len(parts))}
    found: dict[str, None] = {}
    for name in sorted(given, key=list(every).index):
        parts = name.split(".")
        whole = (end for end in range(1, len(parts) + 1) if ".".join(parts[:end]) not in mixed)
        found[".".join(parts[: next(whole)])] = None
    return list(found)


def _of_decoder(name: str) -> bool:
    return name.split(".")[0] == _DECODER


def _named(names: Sequence[str], decodes: bool) -> str:
    """Return names of parts as they are told; beside a decoder, the model without a head is the encoder."""
    body = LongspanModel.base_model_prefix
    whole, part = ("encoder", "encoder.") if decodes else ("all embeddings and layers", "")
    told = [whole if name == body else re.sub(rf"^{body}\.", part, name) for name in names[:_SHOWN]]
    more = len(names) - _SHOWN
    return ", ".join([*told, *([f"{more} more"] if more > 0 else [])]) or "nothing"
