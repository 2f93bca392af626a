"""The contract that every mixer keeps, as checks that you can run on your own mixers."""

import functools
import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from longspan import mixers
from longspan.errors import UserError
from longspan.mixers.base import Mixer
from longspan.testing.mixers import claims, contexts, looks, programs, rows, slices, streams
from longspan.testing.mixers.subject import Subject

Check = Callable[..., None]
PRECISIONS = (torch.float32, torch.bfloat16, torch.float16)


def check_mixer(
    mixer: type[Mixer] | str,
    *,
    dim: int = 16,
    heads: int = 4,
    naive: Callable[..., Tensor] | None = None,
    options: Mapping[str, Any] | None = None,
    device: torch.device | str = "cpu",
) -> None:
    """Check a mixer against the whole contract, in both forms if it has a causal one; see `mixer_checks`.

    Prints how many checks it passed.

    Raises:
        AssertionError: the first broken promise, in one sentence.
        UserError: if PyTorch cannot use the device.
    """
    number = 0
    for _, check in mixer_checks(mixer, dim=dim, heads=heads, naive=naive, options=options, device=device):
        check()
        number += 1
    print(f"{mixer if isinstance(mixer, str) else mixer.__name__} keeps the contract: {number} checks.")


def mixer_checks(
    mixer: type[Mixer] | str,
    *,
    dim: int = 16,
    heads: int = 4,
    naive: Callable[..., Tensor] | None = None,
    options: Mapping[str, Any] | None = None,
    device: torch.device | str = "cpu",
) -> Iterator[tuple[str, Callable[[], None]]]:
    """Yield the name of each check and a function that runs it, for tests with one case per check:

        @pytest.mark.parametrize("check", [pytest.param(c, id=name) for name, c in mixer_checks(MyMixer)])
        def test_my_mixer(check):
            check()

    Args:
        mixer: a class derived from `longspan.mixers.Mixer`, or the name of one, dotted or not.
        dim: width to build it with; even, and at least 8.
        heads: the option of that name, where the mixer has it.
        naive: `naive(mixer, x, mask)` computes `mixer(x, mask)` from the formula, of rows with or without padding
            (`mask` may be None), and so does `naive(mixer, x, mask, context, context_mask)` where there is cross
            attention. Built-in mixers have one. Without one, nothing is compared with a formula.
        options: further options to build the mixer with; with `causal` among them, only that form is checked. Checks
            that need short windows or long rows set the options `radius`, `block_size`, `memory` and `max_length`
            themselves, where the mixer has them.
        device: where it is checked, "cuda" say, with the same weights and inputs as on a CPU.

    What the checks promise is in their docstrings, and in the message of the AssertionError that a broken promise
    raises. Adapters are checked where PEFT is installed.
    """
    kind = mixers.load(mixer) if isinstance(mixer, str) else mixer
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"expected a device that PyTorch can use here, got {device}: {error}") from error
    if not (isinstance(kind, type) and issubclass(kind, Mixer)):
        raise TypeError(f"expected a class derived from longspan.mixers.Mixer, got {kind!r}; derive it.")
    if naive is None and kind.__module__.startswith(f"{mixers.__name__}."):
        naive = importlib.import_module(kind.__module__).naive
    alias = mixers.aliases().get(mixer) if isinstance(mixer, str) else None
    chosen = dict(alias.options) if alias else {}
    if "heads" in inspect.signature(kind).parameters:
        chosen["heads"] = heads
    chosen |= options or {}
    # An alias may set a form, and both are checked.
    chosen.pop("causal", None)
    forms = (False, True) if kind.capabilities.causal else (False,)
    for causal in (options["causal"],) if options and "causal" in options else forms:
        subject = Subject(kind, causal, dim, chosen, naive, torch.device(device))
        for check, arguments in _cases(subject):
            case = [str(argument).removeprefix("torch.") for argument in arguments]
            label = "-".join(["causal"] * causal + case)
            name = f"{check.__name__}[{label}]" if label else check.__name__
            yield name, functools.partial(_run, subject, check, arguments)


def _cases(subject: Subject) -> Iterator[tuple[Check, tuple[Any, ...]]]:
    """Yield the checks that apply, and what each takes besides the subject."""
    able = subject.kind.capabilities
    plain: list[Check] = [
        claims.options_are_keywords_with_defaults,
        claims.attributes_say_how_it_was_built,
        rows.refuses_what_it_cannot_read,
        rows.empty_inputs_give_empty_outputs,
        rows.packed_documents_are_separate_calls,
        rows.gradients_agree_with_finite_differences,
        rows.blocks_agree_with_the_whole,
        claims.gradients_of_counts_agree_with_finite_differences,
        claims.counts_that_do_not_fit_are_refused,
        claims.operations_are_as_many_as_claimed,
        claims.rows_longer_than_max_length_are_refused,
        contexts.contexts_are_refused_where_unsupported,
        looks.looks_are_refused,
        programs.a_deep_copy_is_independent,
        programs.runs_under_autocast,
        programs.forward_mode_is_right_or_refused,
        programs.compiles_without_graph_breaks,
        programs.exports,
        programs.offloaded_weights_arrive,
    ]
    if subject.device.type == "cpu":
        # PyTorch has its 8-bit layers for CPUs alone.
        plain.append(programs.quantised_layers_work)
    precise: list[Check] = [
        rows.padding_on_either_side_changes_nothing,
        rows.what_padding_holds_is_never_seen,
        rows.rows_of_padding_give_zeros,
        rows.batch_mates_change_nothing,
        claims.counts_of_zero_are_padding,
    ]
    if able.looks:
        plain.append(looks.looks_at_whole_rows_are_means)
        precise.append(looks.looks_are_weights_of_what_is_read)
    plain.append(slices.slices_are_the_whole if subject.build().takes_slices else slices.slices_are_refused)
    if subject.naive is not None:
        plain.insert(0, rows.agrees_with_the_naive_form)
        yield from ((rows.extreme_logits_are_right, (scale,)) for scale in (1e2, 1e4))
    if subject.takes_context:
        plain += [contexts.gradients_reach_the_context, contexts.cross_attention_costs_as_much_as_claimed]
        plain += [contexts.programs_read_a_context, contexts.weights_of_a_context_give_the_outputs]
        precise += [
            contexts.what_the_padding_of_a_context_holds_is_never_seen,
            contexts.padding_beside_a_context_changes_nothing,
            contexts.cross_attention_in_low_precision_is_near_float64,
        ]
        if subject.naive is not None:
            plain.append(contexts.cross_attention_agrees_with_the_naive_form)
        if subject.streams:
            plain += [contexts.a_state_with_a_context_is_a_state, contexts.reset_rows_keep_their_context]
            precise += [contexts.a_context_is_read_once, contexts.the_future_of_x_is_not_seen_with_a_context]
    if subject.causal:
        precise.append(rows.outputs_and_gradients_ignore_the_future)
    if subject.streams:
        plain += [
            streams.steps_of_no_positions_change_nothing,
            streams.a_step_does_not_change_the_given_state,
            streams.a_state_is_as_large_as_claimed,
            streams.states_of_other_rows_are_refused,
            streams.a_state_has_the_given_device_and_type,
            streams.a_state_can_be_detached_saved_and_reordered,
        ]
        precise.append(streams.streaming_in_any_cuts_is_the_whole)
    else:
        plain.append(streams.states_need_a_causal_mixer)
    if programs.adapters_apply(subject):
        plain.append(programs.adapters_learn_and_merge)
    yield from ((check, ()) for check in plain)
    for dtype in PRECISIONS:
        yield from ((check, (dtype,)) for check in precise)
        yield from ((rows.low_precision_stays_near_float64, (dtype, t)) for t in (300, 2500))
        yield from ((rows.one_real_token_among_padding_is_alone, (dtype, place)) for place in (0, 211, 299))
        if subject.streams:
            yield from ((streams.reset_rows_start_over, (dtype, holes)) for holes in (False, True))
        if dtype != torch.float16 and subject.build().linear:
            yield rows.many_positions_are_as_accurate_as_few, (dtype,)


def _run(subject: Subject, check: Check, arguments: tuple[Any, ...]) -> None:
    promise = " ".join((check.__doc__ or "").partition("\n\n")[0].split())
    try:
        # On GPUs, convolutions and recurrent layers round float32 to ten bits unless told otherwise.
        with torch.backends.cudnn.flags(allow_tf32=False):
            check(subject, *arguments)
    except Exception as error:
        reason = str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
        raise AssertionError(f"{subject.name} breaks a promise. {promise} But: {reason}") from error
