"""Continue a text, at constant memory and constant time per token: `generate`.

The loop is our own: transformers' `generate` keeps every id, here only the mixers' states remain of what was read.
"""

import statistics as mathematics
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
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
from longspan.models.limits import limits
from longspan.runs import Run, load_run

TASK = "language_modelling"
EDGE = 100
"""So many tokens at the beginning and at the end of a text say what a token costs there."""

_BROKEN = "\N{REPLACEMENT CHARACTER}"
_WINDOW = 16  # tokens decoded together, so that each has its surroundings: several times the bytes of a character


@dataclass
class Statistics:
    """What a generation took so far.

    Attributes:
        prompt_tokens: Tokens of the prompt.
        prompt_seconds: Time to read them.
        new_tokens: Tokens made; the end of the document is none.
        seconds: Time to make them.
        ended: Whether the document came to its end.
        state_bytes: Size of what the model remembers now.
    """

    prompt_tokens: int = 0
    prompt_seconds: float = 0.0
    new_tokens: int = 0
    seconds: float = 0.0
    ended: bool = False
    state_bytes: int = 0
    _early: list[float] = field(default_factory=list)
    _late: deque[float] = field(default_factory=lambda: deque(maxlen=EDGE))

    def add(self, seconds: float) -> None:
        """Count one more token, which took `seconds`."""
        self.seconds += seconds
        self.new_tokens += 1
        if len(self._early) < EDGE:
            self._early.append(seconds)
        self._late.append(seconds)

    def summary(self) -> dict[str, Any]:
        """Return the numbers by name, with `tokens_per_second` and the median milliseconds per token of the first and
        the last `EDGE` tokens, `early_milliseconds` and `late_milliseconds`; None where there are no tokens."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "prompt_seconds": self.prompt_seconds,
            "new_tokens": self.new_tokens,
            "seconds": self.seconds,
            "ended": self.ended,
            "tokens_per_second": self.new_tokens / self.seconds if self.seconds else None,
            "early_milliseconds": 1000 * mathematics.median(self._early) if self._early else None,
            "late_milliseconds": 1000 * mathematics.median(self._late) if self._late else None,
            "state_bytes": self.state_bytes,
        }


def generate(
    run: Run | Path | str,
    prompt: str = "",
    max_new_tokens: int = 256,
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    greedy: bool = False,
    seed: int = 0,
    ignore_end: bool = False,
    statistics: Statistics | None = None,
) -> Iterator[str]:
    """Continue `prompt`, which begins a document; an empty one begins one anew.

    However long prompt and text are, no more is kept than the mixers' states and a few tokens, except by mixers whose
    states grow with what they have seen, as softmax attention's do.

    Args:
        run: A run folder of a language model, or what `longspan.runs.load_run` returns for it.
        prompt: The text to go on from.
        max_new_tokens: Most tokens to make; fewer if the document ends before.
        temperature: Divides the scores: below 1 the likely becomes likelier.
        top_k: Only the so many likeliest tokens are drawn; 0 is all.
        top_p: Only the likeliest tokens that have this probability together are drawn; 1 is all.
        greedy: Take the likeliest token each time instead of drawing one.
        seed: Seed of what is drawn: the same seed gives the same text.
        ignore_end: Whether to go on after the end of the document, with all that is remembered.
        statistics: Filled in as the text is made.

    Yields:
        The text that follows the prompt, in pieces of whole characters, as soon as they are certain.

    Raises:
        UserError: A run of another task, numbers that cannot be, a text longer than learned positions reach, or a
            prompt with characters that a model of characters does not know.
    """
    loaded = run if isinstance(run, Run) else load_run(run)
    if loaded.recipe.task != TASK:
        raise UserError(
            f"expected a run of the task {TASK!r} to continue a text with, but {str(loaded.folder)!r} is one of "
            f"{loaded.recipe.task!r}: name another run."
        )
    warpers = _warpers(max_new_tokens, temperature, top_k, top_p)
    tokens = loaded.tokenizer.encode(prompt, add_special_tokens=False, verbose=False)
    _check_known(loaded, prompt, tokens)
    end = loaded.model.config.eos_token_id
    _check_length(loaded.model, len(tokens) + 1, max_new_tokens)
    choose = _Greedy() if greedy else _Sampler(warpers, loaded.model.device, seed)
    told = Statistics() if statistics is None else statistics
    told.prompt_tokens = len(tokens)
    segment_length = loaded.recipe.training["segment_length"]
    return _continue(loaded, [end, *tokens], max_new_tokens, choose, None if ignore_end else end, segment_length, told)


@torch.no_grad()
def read(model: PreTrainedModel, tokens: Sequence[int], segment_length: int, states: Any = None) -> tuple[Tensor, Any]:
    """Read tokens segment by segment.

    Args:
        model: A `LongspanForCausalLM`.
        tokens: Token ids, at least one.
        segment_length: How many are read at a time.
        states: The states after what was read before; None before anything was.

    Returns:
        The scores of the token that follows, (1, vocab_size), and the states after these.
    """
    for start in range(0, len(tokens), segment_length):
        ids = torch.tensor([tokens[start : start + segment_length]], device=model.device)
        output = model(input_ids=ids, past_key_values=states, use_cache=True, logits_to_keep=1)
        states = output.past_key_values
    return output.logits[:, -1], states


def _continue(
    run: Run, tokens: Sequence[int], count: int, choose: Any, end: int | None, segment_length: int, told: Statistics
) -> Iterator[str]:
    text = _Text(run.tokenizer, tokens)
    start = time.perf_counter()
    scores, states = read(run.model, tokens, segment_length)
    told.prompt_seconds = time.perf_counter() - start
    token = None
    for _ in range(count):
        start = time.perf_counter()
        if token is not None:
            scores, states = read(run.model, [token], 1, states)
        told.state_bytes = states.nbytes
        token = choose(scores)
        if token == end:
            told.ended = True
            break
        told.add(time.perf_counter() - start)
        if piece := text.add(token):
            yield piece
    if piece := text.rest():
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
    """Turns tokens into text as they come, in whole characters."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, before: Sequence[int]) -> None:
        self.tokenizer = tokenizer
        self.window = list(before[-_WINDOW:])
        self.shown = len(self._decode())

    def add(self, token: int) -> str:
        """Return what of the text has become certain by this token."""
        self.window.append(token)
        text = self._decode()
        # Only the last character may be one whose bytes have not all come.
        certain = text.removesuffix(_BROKEN)
        piece = certain[self.shown :]
        self.shown += len(piece)
        if len(self.window) > 2 * _WINDOW:
            left = len(text) - self.shown
            self.window = self.window[-_WINDOW:]
            self.shown = len(self._decode()) - left
        return piece

    def rest(self) -> str:
        """Return what was held back."""
        return self._decode()[self.shown :]

    def _decode(self) -> str:
        decoded: str = self.tokenizer.decode(self.window, clean_up_tokenization_spaces=False)
        return decoded


def _warpers(max_new_tokens: int, temperature: float, top_k: int, top_p: float) -> LogitsProcessorList:
    """Return transformers' own ways to narrow a choice down, as far as they are asked for."""
    if max_new_tokens < 1:
        raise UserError(f"max_new_tokens must be at least 1, but is {max_new_tokens}.")
    if not temperature > 0:
        raise UserError(f"temperature must be above 0, but is {temperature}: for the likeliest tokens, ask for greedy.")
    if top_k < 0:
        raise UserError(f"top_k must be at least 0, which is all tokens, but is {top_k}.")
    if not 0 < top_p <= 1:
        raise UserError(f"top_p must be above 0 and at most 1, which is all tokens, but is {top_p}.")
    warpers = LogitsProcessorList()
    if temperature != 1:
        warpers.append(TemperatureLogitsWarper(float(temperature)))
    if top_k:
        warpers.append(TopKLogitsWarper(top_k))
    if top_p < 1:
        warpers.append(TopPLogitsWarper(top_p))
    return warpers


def _check_known(run: Run, prompt: str, tokens: Sequence[int]) -> None:
    """Refuse characters that a model of characters has never seen: they would all be the same to it."""
    unknown = run.tokenizer.unk_token_id
    if run.recipe.data.tokens != "characters" or unknown not in tokens:
        return
    found = sorted(
        symbol for symbol in set(prompt) if unknown in run.tokenizer.encode(symbol, add_special_tokens=False)
    )
    named = ", ".join(map(repr, found[:20])) + (", ..." if len(found) > 20 else "")
    raise UserError(
        f"the prompt holds {'a character' if len(found) == 1 else 'characters'} that this model has never seen: "
        f"{named}; leave {'it' if len(found) == 1 else 'them'} out."
    )


def _check_length(model: PreTrainedModel, read: int, new: int) -> None:
    for limit in limits(model):
        # The last token is not read.
        if read + new - 1 > limit.tokens:
            raise UserError(
                f"{limit.part} reach to {limit.tokens} tokens, but the prompt has {read} with the start of the "
                f"document, and {new} are to follow: shorten the prompt or ask for fewer."
            )
