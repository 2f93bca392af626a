"""Settings of the command line for its whole process; the library on import changes nothing global."""

import contextlib
import gc
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator

# Left and right factors. A library chooses its routine by shape: square, one row, a vector, odd sizes, few columns,
# long sums, and a batch. PyTorch leaves products of less than 16 x 16 x 16 multiplications where they are.
_FACTORS = (
    ((256, 256), (256, 256)),
    ((1, 300), (300, 300)),
    ((300, 300), (300,)),
    ((37, 67), (67, 129)),
    ((1000, 64), (64, 10)),
    ((3, 2000), (2000, 5)),
    ((8, 65, 33), (8, 33, 17)),
)


def end_with_parent() -> None:
    """Let SIGTERM end this process once the one that started it has ended, even if that was killed."""
    parent = multiprocessing.parent_process()

    def end(parent: multiprocessing.process.BaseProcess) -> None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)

    if parent is not None:
        threading.Thread(target=end, args=(parent,), daemon=True).start()


#: Whether a block of `paused_collector` has ended in this process: the collector would count its objects to say so.
_frozen = False


@contextlib.contextmanager
def paused_collector() -> Iterator[None]:
    """Import and load without garbage collections: they would visit a million objects, all of which stay.

    Objects of the first block in a process are left out of later collections, too.
    """
    global _frozen
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if not _frozen:
            gc.freeze()
            _frozen = True
        if collects:
            gc.enable()


def use_fastest_exact_products() -> str:
    """Let float32 matrix products on CPU take oneDNN's path where that path is exact; GPUs are left alone.

    "medium" allows, but does not force, lower precision. On processors without bfloat16 matrix units it is about twice
    as fast as MKL with the same rounding error. On processors with them it may really round to bfloat16. So products of
    several shapes are compared with float64 in a few milliseconds. If any is worse than float32 rounding, the precision
    stays as it was.

    Returns:
        The precision in force afterwards, as `torch.get_float32_matmul_precision` names it.
    """
    import torch

    before = torch.get_float32_matmul_precision()
    if not torch.cuda.is_available():
        torch.set_float32_matmul_precision("medium")
        # Sums of 2,000 products err by 1e-6 of the largest in float32, factors rounded to bfloat16 by 2e-3.
        if _largest_error() > 1e-5:
            torch.set_float32_matmul_precision(before)
    return torch.get_float32_matmul_precision()


def _largest_error() -> float:
    """Return the largest error of a product in float32, relative to the largest number in that product."""
    import torch

    generator, largest = torch.Generator().manual_seed(0), 0.0
    for left, right in _FACTORS:
        a, b = (torch.randn(shape, generator=generator) for shape in (left, right))
        exact = a.double() @ b.double()
        # The second as weights lie too: transposed.
        for factor in (b, b.mT.contiguous().mT) if b.ndim > 1 else (b,):
            largest = max(largest, float((a @ factor - exact).abs().max() / exact.abs().max()))
    return largest


def quieten_transformers() -> None:
    """Silence transformers' own bars and remarks, which do not help users; our bars and those of downloads stay."""
    from huggingface_hub.utils import are_progress_bars_disabled, enable_progress_bars
    from transformers.utils import logging

    shown = not are_progress_bars_disabled()
    logging.set_verbosity_error()
    # This also silences downloads, which take long.
    logging.disable_progress_bar()
    if shown:
        enable_progress_bars()
