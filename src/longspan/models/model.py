"""The model without a head: tokens in, one vector per token out."""

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.utils.generic import can_return_tuple
from typing_extensions import override

from longspan.errors import UserError
from longspan.machine.imports import named_in
from longspan.models.config import LongspanConfig
from longspan.models.embeddings.base import Embeddings
from longspan.models.embeddings.encoder import EncoderEmbeddings, EncoderSettings
from longspan.models.embeddings.tokens import TokenSettings, token_settings, without_tokens
from longspan.models.layers import build_backbone
from longspan.models.parts.losses import count_items
from longspan.models.parts.ngrams import HashedEmbedding
from longspan.models.parts.positions import Positions, count_positions
from longspan.models.parts.short_convolution import ShortConvolution
from longspan.models.parts.words import WordCharacters
from longspan.models.publishing import put_card
from longspan.models.settings import EmbeddingSettings, HeadSettings, arguments
from longspan.models.states import CACHE, MixerStates, accept_cache
from longspan.models.wide.base import WidePart
from longspan.models.window_encoder import WindowEncoder
from longspan.ops import slices
from longspan.ops.dropout import Dropout
from longspan.ops.execution import on_cpu


class LongspanPreTrainedModel(PreTrainedModel):
    """The base of all longspan models: configuration, loading, initialisation.

    The heads' `forward` names each argument it takes, so that unknown ones are errors, and `Trainer` keeps the columns
    it needs. A head with a loss takes `num_items_in_batch` and divides by it
    (`longspan.models.parts.losses.mean_loss`).

    Attributes:
        head_settings: the settings of the head, `config.head`; None if it has none, or for a model without a head.
        embedding_settings: the settings of its embeddings that `configured` chooses from.
        wide: what it knows by counting; None for a network alone.
    """

    head_settings: ClassVar[type[HeadSettings] | None] = None
    embedding_settings: ClassVar[Sequence[type[EmbeddingSettings]]] = (TokenSettings, EncoderSettings)

    config_class = LongspanConfig
    config: LongspanConfig
    base_model_prefix = "longspan"
    supports_gradient_checkpointing = True
    _no_split_modules: ClassVar[list[str]] = ["LongspanLayer"]

    def __init__(self, config: LongspanConfig) -> None:
        super().__init__(config.with_head(self.head_settings))
        # Each head says which `WidePart` it is.
        self.wide: Any = None

    def post_init(self) -> None:
        """Finish a new model; see transformers.

        Raises:
            TypeError: A weight of the head has the same name as one of the model without a head. transformers would
                load one for the other without a warning.
        """
        prefix, own = f"{self.base_model_prefix}.", {name for name, _ in self.named_parameters(remove_duplicate=False)}
        twice = sorted(name for name in own if prefix + name in own)
        if twice:
            raise TypeError(f"expected other names than those in {self.base_model_prefix!r} for {', '.join(twice)}")
        if self.wide is not None:
            # Tables are too large to be sent with every step.
            self._ddp_params_and_buffers_to_ignore = [f"wide.{name}" for name in self.wide.local_buffers()]
        super().post_init()

    @classmethod
    def configured(cls, **settings: Any) -> LongspanConfig:
        """Return the configuration of such a model from settings of all its parts side by side, as recipes have them.

        Raises:
            UserError: A setting does not belong to these parts, or has a value that does not fit.
        """
        return LongspanConfig(**arguments(settings, cls.embedding_settings, cls.head_settings))

    def head_dropout(self) -> Dropout:
        """Return the dropout before a head that has `classifier_dropout` among its settings."""
        own = self.config.head.classifier_dropout
        return Dropout(self.config.dropout if own is None else own)

    @property
    def window_encoder(self) -> WindowEncoder | None:
        """The pretrained encoder that reads the tokens; None without one."""
        embeddings = getattr(self.base_model, "embeddings", None)
        return embeddings.encoder if isinstance(embeddings, EncoderEmbeddings) else None

    @property
    def frozen_encoder(self) -> WindowEncoder | None:
        """That encoder, unless it is trained, too."""
        return None if self.window_encoder is None or self.window_encoder.trained else self.window_encoder

    @property
    def smooths_labels(self) -> bool:
        """Whether `config.head.label_smoothing` smooths its labels: by default, if there is such a setting."""
        return hasattr(self.config.head, "label_smoothing")

    def count_items(self, labels: Tensor) -> Tensor:
        """Number of items that the loss of these labels is a mean over, which `num_items_in_batch` adds up."""
        return count_items(labels)

    @property
    def accepts_loss_kwargs(self) -> bool:
        """Whether `forward` divides its loss by `num_items_in_batch`; if not, `Trainer` averages over batches."""
        return "num_items_in_batch" in inspect.signature(self.forward).parameters

    def num_parameters(self, only_trainable: bool = False, exclude_embeddings: bool = False) -> int:
        """Return the number of parameters; see transformers. Those of the wide part count, but are not trainable."""
        counted = 0 if self.wide is None or only_trainable else self.wide.size()
        return counted + int(super().num_parameters(only_trainable, exclude_embeddings))

    def tables(self) -> list[nn.Embedding]:
        """Return the embeddings of which a step of training reads few rows: those are all that it changes."""
        return [module for module in self.modules() if isinstance(module, HashedEmbedding)]

    def program_inputs(self, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        """Inputs of an exported program for a batch: `program_output` computes them no more."""
        return {"input_ids": input_ids, "attention_mask": attention_mask}

    def program_output(self, **inputs: Tensor) -> Tensor:
        """The output of an exported program, (b, num_labels) of a classifier and (b, t, ...) of tokens."""
        logits: Tensor = self(**inputs).logits
        return logits

    def read_words(self, begins: Bool[Tensor, " v"], spelling: Int[Tensor, "v k"]) -> None:
        """Take in which tokens begin words, and the bytes of each, 0 after the last: see `longspan.data.text.words`."""
        for module in self.modules():
            if isinstance(module, WordCharacters):
                module.begins.copy_(begins)
                module.spelling.copy_(spelling)

    def resize_token_embeddings(self, *arguments: Any, **options: Any) -> nn.Module:
        """Change the number of tokens; see transformers. Raises UserError unless they have vectors of their own."""
        if token_settings(self.config, "resize_token_embeddings").cutoffs is not None:
            raise UserError(
                "expected plain embeddings to resize, got clusters of tokens (cutoffs); build a new model with another "
                "vocab_size."
            )
        resized: nn.Module = super().resize_token_embeddings(*arguments, **options)
        for module in self.modules():
            if isinstance(module, WordCharacters):
                module.resize(self.config.vocab_size)
        return resized

    @override
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, (HashedEmbedding, ShortConvolution, WordCharacters, WidePart)):
            module.reset_parameters()
        else:
            super()._init_weights(module)

    def save_pretrained(
        self, save_directory: str | Path, *arguments: Any, push_to_hub: bool = False, **options: Any
    ) -> None:
        """Save to a folder, and perhaps to the Hub; see transformers, which would write its card into the folder."""
        hub = {name: options.pop(name) for name in _OF_THE_HUB if push_to_hub and name in options}
        super().save_pretrained(save_directory, *arguments, **options)
        if push_to_hub:
            repository = hub.pop("repo_id", Path(save_directory).name)
            self.push_to_hub(repository, token=options.get("token"), **hub)

    @override
    def _upload_modified_files(self, working_dir: str | Path, repo_id: str, *arguments: Any, **options: Any) -> Any:
        put_card(self, Path(working_dir), repo_id)
        return super()._upload_modified_files(working_dir, repo_id, *arguments, **options)


def check_attentions(config: LongspanConfig, wanted: bool | None) -> None:
    """Check that nobody asks for attention maps, in a call or in the configuration."""
    if wanted or (wanted is None and config.output_attentions):
        raise UserError("expected output_attentions=False, as mixers return no attention maps, got True; leave it out.")


#: Arguments of `save_pretrained` that are `push_to_hub`'s.
_OF_THE_HUB = ("repo_id", "commit_message", "commit_description", "private", "create_pr", "revision", "tags")


class LongspanModel(LongspanPreTrainedModel):
    """Embeddings, positions and a backbone of mixers.

    `forward` takes `input_ids` (b, t), or `inputs_embeds` as the embeddings return them, and returns
    `last_hidden_state` (b, t, dim). The `attention_mask` (b, t) is 1 at real tokens; padding may be on either side.
    `added_embeds`, like the embeddings of tokens, are added to these, 0 at padding. Other `config.embeddings` may read
    other streams, each under its own name in place of `input_ids`. With a pretrained encoder, `inputs_embeds` are its
    outputs, and `input_ids` may be given as well. Positions count from each row's first real token unless
    `position_ids` are given. `document_ids` (b, t) numbers packed documents. With `cross_mixers`, each layer attends to
    `context` (b, m, dim), such as the `last_hidden_state` of a question, where `context_mask` (b, m) is 1. Without a
    context, the cross mixers are skipped. `structure` joins positions besides their order, for the mixers that read it:
    `graph` reads `longspan.mixers.graph.Edges`, and a chain without them.
    `counts` (b, t), floats, say how often each position counts for others, 1 by default (`Mixer.forward`). 0 removes a
    position. `context_counts` (b, m) do so for a context. Minus a gradient with respect to counts says what removing
    each position would change, to first order. Where the embeddings shorten a row, t is the length after that.
    `output_hidden_states` asks for the input of every layer and the output.

    A causal model continues from `past_key_values` (`MixerStates`), or with `use_cache` from the start of a sequence.
    It returns the states after these tokens as `past_key_values` unless `use_cache` is False. The attention mask may
    then be that of the whole sequence: its last t columns count. Its states hold what its layers keep of a `context`,
    which is given with the first tokens, or to `init_states`, and never again.

    Raises UserError for both or neither of `input_ids` and `inputs_embeds`, `inputs_embeds` with n-grams or characters
    of words, which are made of ids, no tokens, states that do not fit, a context without `cross_mixers` or with states
    that hold one, counts with states, and `output_attentions=True`: mixers return no attention maps, and most never
    form one.
    """

    def __init__(self, config: LongspanConfig) -> None:
        super().__init__(config)
        self.embeddings: Embeddings = config.embeddings.build(config)
        width = self.embeddings.output_dim
        self.positions = Positions(
            config.position,
            width,
            combine=config.position_combine,
            max_positions=config.max_positions,
            period=config.position_period,
        )
        joined = self.positions.output_dim
        self.project = nn.Identity() if joined == config.dim else nn.Linear(joined, config.dim)
        self.embedding_norm = nn.LayerNorm(config.dim) if config.embedding_norm else nn.Identity()
        self.dropout = Dropout(config.dropout)
        with named_in(config.name_or_path):
            self.backbone = build_backbone(config, config.depth, config.cross_mixers)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.embeddings.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.embeddings.set_input_embeddings(value)

    def init_states(
        self,
        batch_size: int,
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
        *,
        context: Float[Tensor, "b m d"] | None = None,
        context_mask: Tensor | None = None,
    ) -> MixerStates:
        """Return the states before the first position of `batch_size` sequences.

        They are those of inputs in `dtype` on `device`, by default those of the weights. With `cross_mixers`, each
        layer reads `context` (b, m, dim), where `context_mask` (b, m) is 1, and keeps what later positions need of it.

        Raises UserError for a model that is not causal or has a mixer that cannot stream. So it does for weights that
        are offloaded and therefore on no device, unless `device` is given.
        """
        if not self.config.causal:
            raise UserError("expected a causal model for states, got causal=False; build it with causal=True.")
        dtype = self.dtype if dtype is None else dtype
        if device is None and self.device.type == "meta":
            raise UserError(
                "expected a device for the states of a model with offloaded weights, got none; give init_states one."
            )
        device = self.device if device is None else device
        seen_of_context = None if context_mask is None else context_mask.bool()
        layers = self.backbone.init_states(batch_size, dtype, device, context, seen_of_context)
        seen = torch.zeros(batch_size, dtype=torch.long, device=device)
        recent = self.embeddings.first(batch_size, device)
        return MixerStates(layers, seen, 0, self.backbone.layers, recent)

    def states_from(self, tensors: Mapping[str, Tensor], device: torch.device | None = None) -> MixerStates:
        """Return the states whose tensors `MixerStates.tensors` returned, for instance from a safetensors file.

        They are on `device`, by default that of the weights. Raises UserError if they belong to another model.
        """
        context = None
        if any(".cross." in name for name in tensors):
            # Any context has the states' structure.
            context = torch.zeros(1, 1, self.config.dim, dtype=self.dtype, device=device or self.device)
        return self.init_states(1, device=device, context=context).filled(tensors)

    @accept_cache
    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        document_ids: Tensor | None = None,
        past_key_values: MixerStates | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        added_embeds: Tensor | None = None,
        feature_ids: Tensor | None = None,
        context: Tensor | None = None,
        context_mask: Tensor | None = None,
        structure: Any = None,
        counts: Tensor | None = None,
        context_counts: Tensor | None = None,
        **streams: Tensor | None,
    ) -> BaseModelOutputWithPast:
        check_attentions(self.config, output_attentions)
        streams |= {"input_ids": input_ids, "feature_ids": feature_ids}
        given = self._main_input(streams, inputs_embeds)
        length = given.shape[1]
        if not length:
            raise UserError(
                "expected at least one token in each row, got none; to continue from past_key_values, give the "
                "whole sequence, or the new tokens with its attention_mask."
            )
        mask = None if attention_mask is None else attention_mask[:, -length:].bool()
        if inputs_embeds is not None and mask is not None:
            # Replaced, not multiplied: 0 times NaN is NaN, in the gradients of every weight.
            inputs_embeds = inputs_embeds.masked_fill(~mask.unsqueeze(-1), 0)
        if use_cache is None and self.config.use_cache and self.config.causal:
            # Only where states are possible: a caller who asks for them elsewhere gets an error instead.
            use_cache = True if document_ids is None and not self.training else None
        if context is not None and past_key_values is not None:
            raise UserError(
                "expected either a context or states (past_key_values), which hold the one that they were made with, "
                "got both; leave one of them out."
            )
        streaming = past_key_values is not None or use_cache
        # Training does not wait for a GPU.
        read_now = not torch.compiler.is_compiling() and (not self.training or (mask is not None and on_cpu(mask)))
        if streaming and mask is not None and read_now and mask.all():
            # A mixer's step is simpler without a mask, and the next token of a padded batch needs none.
            mask = None
        before = None if past_key_values is None else past_key_values.recent
        embedded = self.embeddings(streams, vectors=inputs_embeds, mask=mask, document_ids=document_ids, before=before)
        if mask is not None and inputs_embeds is None:
            mask = self.embeddings.reduced(mask)
        read = None if context_mask is None else context_mask.bool()
        states = self._states(past_key_values, use_cache, embedded, document_ids, context, read)
        for what, each in (("a structure", structure), ("counts", counts), ("context_counts", context_counts)):
            if states is not None and each is not None:
                raise UserError(
                    f"expected either {what} or states (past_key_values, use_cache), got both; leave one of them out."
                )
        if added_embeds is not None:
            embedded = embedded + added_embeds
        if self.config.scale_embeddings:
            embedded = embedded * self.config.dim**0.5
        if self.training and self.config.token_dropout and not self.embeddings.drops_tokens:
            embedded = without_tokens(embedded, self.config.token_dropout)
        numbers = count_positions(torch.ones(embedded.shape[:2], device=embedded.device) if mask is None else mask)
        seen = None if states is None else states.seen
        if slices.current() is not None:
            if states is not None:
                raise UserError(
                    "expected slices of rows without states (past_key_values, use_cache), got both; leave one of them "
                    "out."
                )
            first = torch.zeros(embedded.shape[0], dtype=torch.long, device=embedded.device)
            seen = slices.seen_before(first, embedded.shape[1] if mask is None else mask.sum(1))
        if position_ids is not None:
            placed = self.positions.at(embedded, position_ids)
        elif seen is not None:
            numbers = seen.unsqueeze(1) + numbers
            # Padding after a full document would be one position too far.
            placed = self.positions.at(embedded, numbers if mask is None else numbers.masked_fill(~mask, 0))
        else:
            placed = self.positions(embedded, numbers)
        x = self.dropout(self.embedding_norm(self.project(placed)))
        wanted = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        hidden_states: list[Tensor] | None = [] if wanted else None
        after = None
        if states is None:
            x = self.backbone(x, mask, document_ids, hidden_states, context, read, structure, counts, context_counts)
        else:
            x, after = states.step(self.backbone, x, mask, hidden_states, self.embeddings.remembered(streams, mask))
            after = None if use_cache is False else after
        return BaseModelOutputWithPast(
            last_hidden_state=x,
            hidden_states=None if hidden_states is None else (*hidden_states, x),
            **{CACHE: after},
        )

    def _main_input(self, streams: Mapping[str, Tensor | None], inputs_embeds: Tensor | None) -> Tensor:
        """Input of the embeddings: the main stream, or what was given in its place."""
        main, *others = self.embeddings.streams
        for name, stream in streams.items():
            if stream is not None and name not in self.embeddings.streams:
                raise TypeError(f"expected {' or '.join([main, *others])}, which these embeddings read, got {name}")
        given = streams.get(main)
        both = given is not None and inputs_embeds is not None
        if (given is None and inputs_embeds is None) or (both and not self.embeddings.reads_beside_vectors):
            raise UserError(f"expected either {main} or inputs_embeds, got both or neither; give exactly one.")
        found = given if inputs_embeds is None else inputs_embeds
        assert found is not None
        return found

    def _states(
        self,
        past: MixerStates | None,
        use_cache: bool | None,
        embedded: Tensor,
        document_ids: Tensor | None,
        context: Tensor | None,
        context_mask: Tensor | None,
    ) -> MixerStates | None:
        """Return the states to continue from, or None to run whole sequences."""
        if past is None and not use_cache:
            return None
        if document_ids is not None:
            raise UserError(
                "expected either packed documents (document_ids) or states (past_key_values, use_cache), got both; "
                "give each document its own row."
            )
        batch_size = embedded.shape[0]
        states = past
        if states is None:
            states = self.init_states(
                batch_size, embedded.dtype, embedded.device, context=context, context_mask=context_mask
            )
        if states.batch_size != batch_size:
            raise UserError(
                f"expected past_key_values of {batch_size} sequences, got {states.batch_size}; use the states of this "
                "batch, or init_states."
            )
        return states
