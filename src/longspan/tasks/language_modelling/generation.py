"""Continue a text, at constant memory and constant time per token: `generate`.

The loop is our own: transformers' `generate` keeps every id, this one only the mixers' states after what was read.
"""

import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from tokenizers.decoders import DecodeStream
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from longspan.errors import UserError
from longspan.models.limits import check_length
from longspan.models.states import CACHE
from longspan.results import Statistics
from longspan.tasks.base.options import GenerationOptions

#: Tokens before the text that decide how it begins.
_CONTEXT = 16
#: Bytes of the longest character, and therefore the maximum number of its tokens.
_LONGEST = 4
#: Sign for bytes that are not a character, or not yet.
_BROKEN = "\ufffd"


def generate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompt: str,
    options: GenerationOptions,
    segment_length: int,
    statistics: Statistics,
) -> Iterator[str]:
    """Continue `prompt`, which starts a document; an empty one starts a new document.

    Memory holds only the mixers' states and a few tokens, however long prompt and text are. The states of some mixers,
    such as softmax attention, grow with the text.

    Args:
        model: A `LongspanForCausalLM`.
        tokenizer: Its tokenizer.
        prompt: The text to continue.
        options: How to continue it.
        segment_length: Tokens of the prompt that are read at a time.
        statistics: Filled in as the text is made.

    Yields:
        The text that follows the prompt, in pieces of whole characters, as soon as they are certain.

    Raises:
        UserError: The text would be longer than learned positions reach.
    """
    tokens = tokenizer.encode(prompt, add_special_tokens=False, verbose=False)
    end = model.config.eos_token_id
    # The last token is not read.
    check_length(
        model,
        len(tokens) + options.max_new_tokens,
        f"a prompt of {len(tokens) + 1} with the start of the document and {options.max_new_tokens} to follow",
        "shorten the prompt or ask for fewer",
    )
    choose = _Greedy() if options.greedy else _Sampler(_warpers(options), model.device, options.seed)
    statistics.prompt_tokens = len(tokens)
    stop = None if options.ignore_end else end
    count = options.max_new_tokens
    return _continue(model, tokenizer, [end, *tokens], count, choose, stop, segment_length, statistics)


@torch.no_grad()
def read_tokens(
    model: PreTrainedModel, tokens: Sequence[int], segment_length: int, states: Any = None
) -> tuple[Tensor, Any]:
    """Read tokens segment by segment.

    Args:
        model: A `LongspanForCausalLM`.
        tokens: Token ids, at least one.
        segment_length: Number of tokens read at a time.
        states: The states after what was read before; None at the beginning.

    Returns:
        The scores of the token that follows, (1, vocab_size), and the states after these.
    """
    for start in range(0, len(tokens), segment_length):
        ids = torch.tensor([tokens[start : start + segment_length]], device=model.device)
        output = model(input_ids=ids, past_key_values=states, use_cache=True, logits_to_keep=1)
        states = output[CACHE]
    return output.logits[:, -1], states


def _continue(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    tokens: Sequence[int],
    count: int,
    choose: Any,
    end: int | None,
    segment_length: int,
    told: Statistics,
) -> Iterator[str]:
    text = _Text(tokenizer, tokens)
    start = time.perf_counter()
    scores, states = read_tokens(model, tokens, segment_length)
    told.prompt_seconds = time.perf_counter() - start
    token = None
    for _ in range(count):
        start = time.perf_counter()
        if token is not None:
            scores, states = read_tokens(model, [token], 1, states)
        told.state_bytes = states.nbytes
        token = choose(scores)
        if token == end:
            told.ended = True
            break
        told.add(time.perf_counter() - start)
        if piece := text.add(token):
            yield piece
    if piece := text.remaining():
        yield piece


class _Greedy:
    def __call__(self, scores: Tensor) -> int:
        return int(scores.argmax(-1))


class _Sampler:
    def __init__(self, warpers: LogitsProcessorList, device: torch.device, seed: int) -> None:
        self.warpers = warpers
        self.random = torch.Generator(device).manual_seed(seed)

    def __call__(self, scores: Tensor) -> int:
        # Nothing that is used here looks at the tokens before.
        kept = self.warpers(None, scores.float())
        return int(torch.multinomial(kept.softmax(-1), 1, generator=self.random))


class _Text:
    """Turns tokens into text as they come, in whole characters; tokenizers written in Python return it at the end."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, before: Sequence[int]) -> None:
        self.tokenizer = tokenizer
        # Tokenizers of words put spaces between words, not before the first.
        self.before = list(before[-_CONTEXT:])
        self.stream = DecodeStream(ids=list(self.before)) if tokenizer.is_fast else None
        self.pending: list[int] = []
        self.shown = 0

    def add(self, token: int) -> str:
        """Return the text that has become certain with this token."""
        self.pending.append(token)
        if self.stream is None:
            return ""
        text: str = self.stream.step(self.tokenizer.backend_tokenizer, token) or ""
        if text:
            text, self.pending, self.shown = text[self.shown :], [], 0
            return text
        text = self._decode(self.pending)
        if not text.endswith(_BROKEN):
            return ""
        # Bytes that are not text: only the last may begin a character.
        piece = text[self.shown : -1]
        self.shown = len(text) - 1
        if len(self.pending) > _LONGEST:
            self.pending = self.pending[-_LONGEST:]
            self.shown = len(self._decode(self.pending)) - 1
            self.stream = DecodeStream(ids=list(self.pending))
        return piece

    def remaining(self) -> str:
        """The text held back so far."""
        if self.stream is None:
            return self._decode(self.before + self.pending)[len(self._decode(self.before)) :]
        return self._decode(self.pending)[self.shown :]

    def _decode(self, tokens: list[int]) -> str:
        text: str = self.tokenizer.decode(tokens, clean_up_tokenization_spaces=False)
        return text


def _warpers(options: GenerationOptions) -> LogitsProcessorList:
    """Requested ones of transformers' filters of the next token's scores."""
    warpers = LogitsProcessorList()
    if options.temperature != 1:
        warpers.append(TemperatureLogitsWarper(float(options.temperature)))
    if options.top_k:
        warpers.append(TopKLogitsWarper(options.top_k))
    if options.top_p < 1:
        warpers.append(TopPLogitsWarper(options.top_p))
    return warpers


def check_characters(tokenizer: PreTrainedTokenizerBase, prompt: str) -> None:
    """Raise UserError for characters that a model of characters has never seen: they would all be the same to it."""
    unknown = tokenizer.unk_token_id
    if unknown not in tokenizer.encode(prompt, add_special_tokens=False, verbose=False):
        return
    found = sorted(symbol for symbol in set(prompt) if unknown in tokenizer.encode(symbol, add_special_tokens=False))
    named = ", ".join(map(repr, found[:20])) + (", ..." if len(found) > 20 else "")
    raise UserError(
        f"expected a prompt of characters that this model has seen, got {named}; leave "
        f"{'it' if len(found) == 1 else 'them'} out."
    )
