"""What a mixer claims about itself: what it can do, and what it costs."""

import functools
import inspect

import torch

from longspan.errors import UserError
from longspan.mixers.base import Mixer
from longspan.testing.counting import count_operations
from longspan.testing.mixers.subject import Subject, need, refused

# How far counted operations may be from claimed ones: blocks at the end of a row are not full, and a few thin products
# are left out. A larger difference means that a term of the formula is wrong.
FACTOR = 1.1


def operations_are_as_many_as_claimed(subject: Subject) -> None:
    """A forward pass takes the claimed `operations`, and grows linearly with the length if `linear`."""
    mixer, counts = subject.build(), []
    for length in (40, 1024, 2048):
        x = torch.zeros(1, length, subject.dim, device=subject.device)
        with torch.no_grad():
            counted, claimed = count_operations(functools.partial(mixer, x)), mixer.operations(length)
        counts.append(counted)
        need(
            counted <= FACTOR * claimed and claimed <= FACTOR * counted,
            f"{counted} operations counted at length {length}, but {claimed} claimed",
        )
    grows = counts[2] > 2.1 * counts[1]
    need(grows != mixer.linear, f"twice the length takes {counts[2] / max(1, counts[1]):.2f} times the operations")


def options_are_keywords_with_defaults(subject: Subject) -> None:
    """The constructor takes the width, and options by keyword, all with defaults; `causal` if there is such a form."""
    first, *others = inspect.signature(subject.kind).parameters.values()
    need(first.kind is first.POSITIONAL_OR_KEYWORD, f"the first argument is {first}, where the width should be")
    bad = [str(p) for p in others if p.kind is not p.KEYWORD_ONLY or p.default is p.empty]
    need(not bad, f"not keyword-only with a default: {', '.join(bad)}")
    able = subject.kind.capabilities
    need(("causal" in subject.known) == able.causal, f"capabilities.causal is {able.causal}, unlike the options")
    need(able.causal or not able.streaming, "it streams without a causal form")


def attributes_say_how_it_was_built(subject: Subject) -> None:
    """`dim`, `causal`, `max_length` and `memory` say how a mixer was built, and a memory can be set."""
    mixer = subject.build()
    need(mixer.dim == subject.dim and mixer.causal == subject.causal, "dim and causal are not what was asked for")
    need(mixer.max_length is None or mixer.max_length >= 1, f"max_length is {mixer.max_length}")
    if mixer.memory is None:
        refused(UserError, "memory", lambda: mixer.set_memory(3))
        return
    mixer.set_memory(3)
    need(mixer.memory == 3, f"memory is {mixer.memory} after set_memory(3)")
    refused(UserError, "memory", lambda: mixer.set_memory(-1))


def rows_longer_than_max_length_are_refused(subject: Subject) -> None:
    """A row with more real positions than `max_length` is refused; padding does not count."""
    mixer: Mixer = subject.build(max_length=8)
    if mixer.max_length is None:
        return
    most = mixer.max_length
    x, mask = subject.inputs(1, most + 1), torch.arange(most + 1, device=subject.device).unsqueeze(0) > 0
    mixer(x, mask)
    refused(UserError, f"{most}", lambda: mixer(x))
