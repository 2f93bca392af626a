"""Checks with other programs: compile, export, copy, transform, adapt, quantise and offload mixers."""

import copy
import importlib.util
import re
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from longspan.mixers.base import Mixer
from longspan.testing.mixers.subject import Subject, close, in_steps, need, without_shape_checks


def compiles_without_graph_breaks(subject: Subject) -> None:
    """torch.compile takes it in one piece, steps included."""
    torch._dynamo.reset()
    mixer, x, mask = subject.build(), subject.inputs(2, 20), _some_padding(subject)
    with without_shape_checks():
        compiled = torch.compile(mixer, backend="aot_eager", fullgraph=True)
        close(compiled(x, mask), mixer(x, mask))
        if not subject.streams:
            return
        with torch.no_grad():
            _, state = mixer.step(x[:, :18], mixer.init_state(2))
            step = torch.compile(mixer.step, backend="aot_eager", fullgraph=True)
            part, real = x[:, 18:], mask[:, 14:16]
            torch.testing.assert_close(step(part, state, real), mixer.step(part, state, real))


def exports(subject: Subject) -> None:
    """torch.export makes one program of it for any batch and length, of torch's own operators."""
    # Primes, so that they are no size of the mixer by chance.
    mixer, x, mask = subject.build(), subject.inputs(3, 41), subject.full(3, 41)
    mask[0, 30:] = False
    sizes = {0: torch.export.Dim("batch", min=1), 1: torch.export.Dim("length", min=1, max=mixer.max_length)}
    with without_shape_checks(), torch.no_grad():
        program = torch.export.export(mixer, (x, mask), dynamic_shapes=(sizes, sizes))
        own = {node.target.namespace for node in program.graph.nodes if isinstance(node.target, torch._ops.OpOverload)}
        need(own <= {"aten"}, f"it has operators of {', '.join(sorted(own - {'aten'}))}")
        run = program.module()
        for b, t in ((1, 1), (2, 2), (1, 64), (2, 131)):
            x, mask = subject.inputs(b, t), subject.full(b, t)
            mask[-1, t - t // 3 :] = False
            close(run(x, mask), mixer(x, mask))


def runs_under_autocast(subject: Subject) -> None:
    """Under autocast results are right to half precision."""
    mixer, x = subject.build(), subject.inputs(2, 50)
    with torch.autocast(subject.device.type, torch.bfloat16):
        y = mixer(x, subject.full(2, 50))
        y.float().sum().backward()
    close(y, mixer(x), torch.bfloat16)


def a_deep_copy_is_independent(subject: Subject) -> None:
    """A deep copy has its own weights."""
    mixer, x = subject.build(), subject.inputs(2, 10)
    before = mixer(x)
    with torch.no_grad():
        for parameter in copy.deepcopy(mixer).parameters():
            parameter.zero_()
    # On a GPU, sums may be taken in another order each time.
    close(mixer(x), before)


def forward_mode_is_right_or_refused(subject: Subject) -> None:
    """torch.func.jvp gives the derivative, or PyTorch says that an operation has none."""
    mixer, x, mask = subject.build(torch.float64), subject.inputs(2, 20, torch.float64), _some_padding(subject)
    along = subject.inputs(2, 20, torch.float64).flip(0)
    with without_shape_checks(), warnings.catch_warnings():
        # PyTorch's own warning, when it first takes such a derivative.
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            derivative = torch.func.jvp(lambda x: mixer(x, mask), (x,), (along,))[1]
        except RuntimeError as error:
            # Of an operation without a formula, or a function of one's own without `jvp` or `setup_context`.
            if not re.search(r"forward (AD|mode)|functorch transforms", str(error)):
                raise
            return
        with torch.no_grad():
            ahead, back = mixer(x + 1e-6 * along, mask), mixer(x - 1e-6 * along, mask)
    torch.testing.assert_close(derivative, (ahead - back) / 2e-6, rtol=1e-6, atol=1e-6)


def adapters_learn_and_merge(subject: Subject) -> None:
    """LoRA on each nn.Linear reaches the result: all adapters have gradients, and merging them changes nothing."""
    from peft import LoraConfig, inject_adapter_in_model
    from peft.tuners.lora import LoraLayer

    mixer = subject.build(torch.float64)
    config = LoraConfig(r=2, target_modules=_linears(mixer), init_lora_weights=False)
    plain = copy.deepcopy(mixer)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(1)
        inject_adapter_in_model(config, mixer)
    mixer.to(subject.device, torch.float64)
    # More positions than dim, and fewer: folding pays off for only one of them.
    wide, narrow = subject.inputs(2, 3 * subject.dim, torch.float64), subject.inputs(2, 3, torch.float64)
    mask = subject.mask(2, 3 * subject.dim, seed=6, hidden=0.3)
    given: list[tuple[Tensor, Tensor | None]] = [(wide, None), (wide, mask), (narrow, None)]
    separate = []
    for x, real in given:
        mixer.zero_grad()
        y = mixer(x, real)
        (y**2).sum().backward()
        silent = [n for n, p in mixer.named_parameters() if "lora_" in n and (p.grad is None or not p.grad.any())]
        need(not silent, f"no gradient reaches {', '.join(silent)}")
        separate.append(y.detach())
    need(not torch.allclose(separate[0], plain(wide)), "the adapters change nothing")
    if subject.streams:
        close(in_steps(mixer, wide, [1, 7, 3 * subject.dim - 8], mixer.init_state(2)), separate[0])
    for module in mixer.modules():
        if isinstance(module, LoraLayer):
            module.merge()
    for (x, real), expected in zip(given, separate, strict=True):
        close(mixer(x, real), expected)


def quantised_layers_work(subject: Subject) -> None:
    """Dynamic quantisation of each nn.Linear leaves a mixer that runs, with results close to the original's."""
    mixer, t = subject.build(), 3 * subject.dim
    x, mask = subject.inputs(2, t), subject.full(2, t)
    mask[0, :5] = False
    with warnings.catch_warnings(), torch.no_grad():
        # Deprecated, as PyTorch is moving it to another package, but still widely used.
        warnings.simplefilter("ignore")
        quantised = torch.ao.quantization.quantize_dynamic(mixer, {nn.Linear}, dtype=torch.qint8)
        y, expected = quantised(x, mask), mixer(x, mask)
        if subject.streams:
            quantised.step(x, quantised.init_state(2), mask)
    # Inputs of a layer are rounded to 256 steps of their largest number: little is left of those that shrink as 1/t.
    need((y - expected).abs().mean() < 0.25 * expected.abs().mean(), "results are far from the original's")


def offloaded_weights_arrive(subject: Subject) -> None:
    """Weights that accelerate keeps elsewhere and fetches for each call are there when they are used."""
    from accelerate import cpu_offload

    mixer, t = subject.build(), 3 * subject.dim
    x, mask = subject.inputs(2, t), subject.full(2, t)
    mask[0, :5] = False
    offloaded: Any = cpu_offload(copy.deepcopy(mixer), execution_device=subject.device, offload_buffers=True)
    with torch.no_grad():
        close(offloaded(x, mask), mixer(x, mask))
        if subject.streams:
            close(in_steps(offloaded, x, [1, 2, t - 3], offloaded.init_state(2)), mixer(x))


def adapters_apply(subject: Subject) -> bool:
    """Return whether PEFT is installed, and the mixer has layers that it adapts."""
    return importlib.util.find_spec("peft") is not None and bool(_linears(subject.build()))


def _linears(mixer: Mixer) -> list[str]:
    return [name for name, module in mixer.named_modules() if isinstance(module, nn.Linear)]


def _some_padding(subject: Subject) -> Tensor:
    mask = subject.full(2, 20)
    mask[0, 15:] = False
    return mask
