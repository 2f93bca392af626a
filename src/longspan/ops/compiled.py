"""Loops over NumPy arrays as machine code: `compiled`."""

import inspect
from collections.abc import Callable
from typing import Any

import numba


def compiled(function: Callable[..., Any], **more: Any) -> Callable[..., Any]:
    """Compile on first call, without the interpreter's lock; keep the machine code on disk if a folder is writable."""
    # Sums in any order and fused multiply-adds, so that loops over channels vectorise; NaN and infinity stay.
    options: dict[str, Any] = {
        "nogil": True,
        "error_model": "numpy",
        "fastmath": {"reassoc", "contract", "nsz"},
        **more,
    }
    # Import hooks that check annotations wrap functions in code that does not compile.
    function = inspect.unwrap(function)
    try:
        found: Callable[..., Any] = numba.njit(cache=True, **options)(function)
    except RuntimeError:  # Neither the source folder nor the user's cache folder can be written.
        found = numba.njit(**options)(function)
    return found
