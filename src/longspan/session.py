"""What the command line sets for its whole process; the library on import changes nothing global."""


def use_fastest_exact_products() -> None:
    """Let float32 matrix products on CPU take oneDNN's path where that path is exact; GPUs are left alone.

    "medium" allows, but does not force, lower precision. On processors without bfloat16 matrix units it is about twice
    as fast as MKL with the same rounding error; on those with them it may really round to bfloat16. So one product is
    compared with float64, and anything worse than float32 rounding is switched off again.
    """
    import torch

    if torch.cuda.is_available():
        return
    before = torch.get_float32_matmul_precision()
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, 256, 256, generator=generator).unbind()
    exact = a.double() @ b.double()
    torch.set_float32_matmul_precision("medium")
    if float(((a @ b) - exact).abs().max() / exact.abs().max()) > 1e-5:
        torch.set_float32_matmul_precision(before)


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
