"""Shared by all tests: nothing of the user's is read or written, nothing is downloaded, results repeat, and the
project's shape annotations are checked at run time."""

import ctypes
import gc
import os
import runpy
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from traceback import StackSummary
from typing import Any

import pytest

# Before anything imports these libraries; subprocesses inherit it. One thread each, as workers run side by side, and
# as sums in another order are other sums.
_HOME = tempfile.TemporaryDirectory(prefix="longspan-tests-")
os.environ |= {"HF_HOME": _HOME.name, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "MPLBACKEND": "agg"}
# Where sizes are symbols, as in exports, looking up what an operation gives takes longer than working it out.
os.environ["TORCH_FAKE_TENSOR_DISPATCH_CACHE"] = "0"

# Python would look through all that is imported several times while it grows; tests that count objects collect first.
gc.set_threshold(50_000, 20, 20)
# The C library hands large blocks back when they are freed, and gets the next one page by page: half the time of what
# is computed over many positions. Instead, tests that leave much of it free hand it back at their end.
_C = ctypes.CDLL(None)
if hasattr(_C, "mallopt"):
    for trim_or_mmap_threshold in (-1, -3):
        _C.mallopt(trim_or_mmap_threshold, 1 << 30)


def _resident_pages() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) if hasattr(_C, "malloc_trim") else 0


import jaxtyping  # noqa: E402
import shape_checks  # noqa: E402
import small_figures  # noqa: E402
import torch  # noqa: E402
from hypothesis import settings  # noqa: E402
from torch.utils._traceback import CapturedTraceback  # noqa: E402

# Only where tensors are handled: annotations elsewhere are mypy's business.
shape_checks.install(["longspan.ops", "longspan.mixers", "longspan.models.parts.positions", "longspan.models.backbone"])

# Tracing notes for each operation where it was called from: a tenth of the time of compiling and exporting.
_NOTED = CapturedTraceback.summary
CapturedTraceback.summary = lambda self: StackSummary()  # type: ignore[method-assign]

settings.register_profile("longspan", deadline=None, derandomize=True, max_examples=15, database=None)
settings.load_profile("longspan")

small_figures.install()


@pytest.fixture(autouse=True, scope="module")
def _modules_stay() -> None:
    """Take what is imported by now out of later collections: accelerate asks for three in every training run, and each
    would visit a million objects that stay anyway."""
    gc.collect()
    gc.freeze()
    if hasattr(_C, "malloc_trim"):
        _C.malloc_trim(0)


#: `torch.manual_seed` keeps a note for each kind of device that is not there, with the stack it was called from:
#: milliseconds a test.
_seed = torch.manual_seed if torch.cuda.is_available() else torch.default_generator.manual_seed


@pytest.fixture(autouse=True)
def _repeatable() -> Iterator[None]:
    torch.set_num_threads(1)
    _seed(0)
    before = _resident_pages()
    yield
    if _resident_pages() > before + 2**14:
        _C.malloc_trim(0)


@pytest.fixture
def no_shape_checks() -> Iterator[None]:
    """Users compile without the checks the suite adds, and the compiler cannot trace them."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture
def notes_of_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tracing notes where operations were called from, as it does for users."""
    monkeypatch.setattr(CapturedTraceback, "summary", _NOTED)


@pytest.fixture(params=["loops", "plain", *["gpu"] * torch.cuda.is_available()])
def scan_path(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run a test with the compiled loops, then without them, as on other devices, and on a GPU if there is one."""
    # After the hook that checks shapes.
    from longspan.ops import scan

    with ExitStack() as stack:
        if request.param == "plain":
            scans = (scan.lerp_scan_operator, scan.softmax_gates_operator)
            for each in (*scans, scan.lerp_scan_gradient, scan.softmax_gates_gradient):
                stack.enter_context(each.definition.set_kernel_enabled("cpu", enabled=False))
        if request.param == "gpu":
            stack.enter_context(torch.device("cuda"))
        yield str(request.param)


@pytest.fixture
def run_benchmark(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Run a script of `benchmarks/` as from a shell; what it sets for the whole process is set back."""
    # Most tests never need it.
    from transformers.utils import logging

    folder = Path(__file__).parent.parent / "benchmarks"
    precision = torch.get_float32_matmul_precision()
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    monkeypatch.syspath_prepend(str(folder))

    def run(name: str, *arguments: str) -> None:
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        runpy.run_path(str(folder / name), run_name="__main__")

    yield run
    torch.set_float32_matmul_precision(precision)
    logging.set_verbosity(verbosity)
    if bars:
        logging.enable_progress_bar()


@pytest.fixture(scope="module")
def as_on_the_command_line() -> Iterator[None]:
    """Runs of the command line and runs in this process must agree to the bit."""
    # After the hook above.
    from longspan.cli import use_fastest_exact_products

    before = torch.get_float32_matmul_precision()
    use_fastest_exact_products()
    yield
    torch.set_float32_matmul_precision(before)


@pytest.fixture
def compared_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs and baselines of a comparison stay in this process, which spares each of them seconds of imports."""
    from longspan import train
    from longspan.verbs import compare, fitting

    def train_here(wanted: Any, run_dir: Path, launcher: Any) -> None:
        train(wanted, run=run_dir, progress=False)

    def fit_here(name: str, wanted: Any, folder: Path, launcher: Any) -> None:
        folder.mkdir()
        (folder / "recipe.toml").write_text(wanted.to_toml(), encoding="utf-8")
        fitting.fit(wanted, name, folder)

    monkeypatch.setattr(compare, "_train", train_here)
    monkeypatch.setattr(compare, "_fit", fit_here)


@pytest.fixture(scope="session")
def animals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CSV of 240 documents of 3 to 40 words about cats or dogs, which any model learns."""
    words = {"cat": ["purr", "meow", "whisker"], "dog": ["bark", "wag", "fetch"]}
    rows = ["text,label"]
    for number in range(240):
        label = "cat" if number % 2 else "dog"
        # Neither label has words or lengths of its own but for the three above.
        filler = [f"word{(number * 7 + i * i) % 23}" for i in range(number * 5 % 38)]
        filler.insert(number % (len(filler) + 1), " ".join(words[label]))
        rows.append(f"{' '.join(filler)},{label}")
    path = tmp_path_factory.mktemp("animals") / "animals.csv"
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path
