"""The environment of a result: software, hardware and the commit of the code."""

import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from longspan.machine.limits import cores

_PACKAGES = ("longspan", "torch", "transformers", "datasets", "tokenizers", "accelerate", "numpy")


def environment() -> dict[str, Any]:
    """Return versions, processor, matrix products, threads, GPU, the commit of a source checkout, and the command."""
    import torch

    return {
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "platform": platform.platform(),
        "processor": _processor(),
        # The instructions that PyTorch uses, which may be fewer than the processor has.
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "float32_matmul_precision": _matmul_precision(),
        "cores": cores(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "commit": _commit(),
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
    }


def _version(package: str) -> str | None:
    """Return the version of an installed package; None for a source tree on Python's path."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    """Return the processor's name; `platform.processor` is empty on most Linux systems."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def _matmul_precision() -> str:
    """Precision of float32 products: "highest", "high" or "medium"; else as set for this device."""
    import torch

    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        # PyTorch refuses to name one after somebody set the precision of one backend.
        backend = torch.backends.cuda if torch.cuda.is_available() else torch.backends.mkldnn
        return str(backend.matmul.fp32_precision)


def _commit() -> str | None:
    """Return the commit of this package's checkout, with "+" if files differ; None if it is installed."""
    here = Path(__file__).parent

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=here, capture_output=True, text=True, check=True).stdout.strip()

    try:
        if not git("ls-files", "--", Path(__file__).name):
            return None
        return git("rev-parse", "--short", "HEAD") + (
            "+" if git("status", "--porcelain", "--untracked-files=no") else ""
        )
    except (OSError, subprocess.CalledProcessError):
        return None
