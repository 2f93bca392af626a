"""The contract from outside, applied to any model of transformers: `check_model`."""

import dataclasses
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import metadata
from pathlib import Path

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from longspan.errors import check_choice
from longspan.results.check import Checked, ModelReport, Outcome
from longspan.testing.models import caches, checks
from longspan.testing.models.subject import TOLERANCE, NotApplicable, Subject, deviation
from longspan.testing.models.targets import resolve

Check = Callable[[Subject], Iterator[tuple[str, float]]]

LEAST_INFLUENCE = 10 * TOLERANCE
"""What one token must change at other positions, relative to the largest output, for faults to be seen."""


def influence(subject: Subject) -> Iterator[tuple[str, float]]:
    """A token changes outputs at other positions, so that the other checks see what they look for."""
    ids, other = subject.draw(1), subject.draw(1, seed=1)
    place = ids.shape[1] // 2
    changed = ids.clone()
    # Drawn from another seed, it may be the same.
    changed[:, place] = torch.where(other[:, place] == ids[:, place], ids[:, place] - 1, other[:, place])
    found, expected = subject.read_padded(changed, None), subject.read_padded(ids, None)
    elsewhere = slice(None) if subject.task == "seq2seq" else slice(place + 1, None)
    size = deviation(found[:, elsewhere], expected[:, elsewhere])
    if size < LEAST_INFLUENCE:
        raise AssertionError(f"a token changes outputs at other positions by {size:.1e} only")
    yield from ()


def attention_implementations(subject: Subject) -> Iterator[tuple[str, float]]:
    """Attention "sdpa" gives the outputs of "eager"."""
    if subject.attention != "sdpa":
        raise NotApplicable("its attention has one implementation")
    ids = subject.draw(2)
    eager = dataclasses.replace(subject, attention="eager")
    yield "outputs", deviation(subject.read(ids), eager.read(ids))


#: All checks by their names, in order.
CHECKS: dict[str, Check] = {
    check.__name__.replace("_", "-"): check
    for check in (
        influence,
        checks.padding_on_the_right,
        checks.padding_on_the_left,
        checks.other_rows,
        checks.earlier_inputs,
        checks.future_in_outputs,
        checks.future_in_gradients,
        caches.cached_steps,
        caches.cached_chunks,
        caches.cached_padding,
        caches.generation,
        caches.beams,
        checks.packing,
        checks.float16,
        checks.bfloat16,
        attention_implementations,
        checks.training_mode,
        checks.gradient_checkpointing,
        checks.saving,
        checks.logits_to_keep,
        checks.compilation,
    )
}
#: What says why nothing claims that a check passes, for checks that few models claim to pass.
LIMITS: dict[str, Callable[[Subject], str]] = {
    "packing": checks.limit_of_packing,
    "padding-on-the-left": checks.limit_on_the_left,
}
#: Checks that run only where they are asked for: they take minutes for some models.
SLOW = ("compilation",)


def check_model(
    model: str | Path | PreTrainedConfig | type[PreTrainedModel],
    *,
    only: Sequence[str] = (),
    compiled: bool = False,
    progress: Callable[[str], None] | None = None,
) -> ModelReport:
    """Check a model of transformers from outside: padding, other rows, causality, caches, packing and programs.

    The model is tiny and has random weights. Nothing is downloaded, and no code of a folder is executed.

    Args:
        model: A model type such as "mamba", the name of a class, a folder with config.json, a class or a configuration.
            A configuration is used as it is; the sizes of a folder's are reduced.
        only: Names of the checks to run (`CHECKS`); by default, all but "compilation".
        compiled: Whether to run "compilation", too.
        progress: Is called with the name of each check before it runs.

    Raises:
        UserError: There is no such model or check, or transformers cannot build a tiny one.
    """
    for name in only:
        check_choice("check", name, CHECKS)
    began = time.perf_counter()
    told, subject = resolve(model)
    subjects = [dataclasses.replace(subject, attention=attention) for attention in attentions(subject)]
    chosen = [name for name in CHECKS if (name in only if only else name not in SLOW or compiled)]
    found = []
    for name in chosen:
        if progress is not None:
            progress(name)
        found.append(_checked(name, subjects))
    return ModelReport(
        told,
        subject.kind.__name__,
        subject.task,
        [one.attention for one in subjects if one.attention is not None],
        found,
        sum(weight.numel() for weight in subjects[0].model.parameters()),
        time.perf_counter() - began,
        {package: metadata.version(package) for package in ("torch", "transformers")},
    )


def model_checks() -> dict[str, str]:
    """Return the checks of `check_model` by name, in order: each with what it promises."""
    return {name: _promise(check) for name, check in CHECKS.items()}


def attentions(subject: Subject) -> Iterable[str | None]:
    """Return the implementations of attention to check; None where the class has only its own."""
    return ("eager", "sdpa") if subject.kind._supports_sdpa else (None,)


def _promise(check: Check) -> str:
    return " ".join((check.__doc__ or "").partition("\n\n")[0].split())


def _refusal(error: Exception) -> bool:
    """Say whether a `raise` outside torch told what a model cannot do, rather than an operation that went wrong."""
    if not isinstance(error, (NotImplementedError, ValueError)):
        return False
    last = traceback.extract_tb(error.__traceback__)[-1]
    return (last.line or "").startswith("raise ") and not Path(last.filename).is_relative_to(
        Path(torch.__file__).parent
    )


def _checked(name: str, subjects: Sequence[Subject]) -> Checked:
    check = CHECKS[name]
    promise = _promise(check)
    tolerance = None if name in ("influence", "float16", "bfloat16") else TOLERANCE
    found, reasons = list[tuple[float, str]](), list[str]()
    for one in subjects:
        # A new model for each check: some change with what they read.
        subject = dataclasses.replace(one)
        prefix = f"{subject.attention}, " if len(subjects) > 1 else ""
        try:
            with torch.no_grad(), torch.random.fork_rng(devices=[]), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                torch.default_generator.manual_seed(0)
                found += [(size, f"{prefix}{where}") for where, size in check(subject)]
        except NotApplicable as reason:
            reasons.append(str(reason))
        except Exception as error:
            kind: Outcome = "refused" if _refusal(error) else "failed"
            limit = checks.DOCUMENTED.get(one.config.model_type, {}).get(name)
            first = " ".join(str(error).split())[:300]
            told = first if isinstance(error, AssertionError) else f"{type(error).__name__}: {first}"
            if limit:
                return Checked(name, "not claimed", promise, None, tolerance, prefix.strip(", "), f"{limit} ({told})")
            return Checked(name, kind, promise, None, tolerance, prefix.strip(", "), told)
    if not found:
        if reasons:
            return Checked(name, "not applicable", promise, reason=reasons[0])
        return Checked(name, "passed", promise)
    size, where = max(found)
    if size < float("inf") and (tolerance is None or size <= tolerance):
        return Checked(name, "passed", promise, size, tolerance, where)
    limit = checks.DOCUMENTED.get(subjects[0].config.model_type, {}).get(name, "")
    if not limit and name in LIMITS:
        limit = LIMITS[name](subjects[0])
    return Checked(name, "not claimed" if limit else "failed", promise, size, tolerance, where, limit)
