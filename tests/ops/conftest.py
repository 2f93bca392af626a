"""Shared by the tests of scans and of what is built on them."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest


@pytest.fixture(params=["loops", "plain"])
def scan_path(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run a test with the compiled loops and without them, as on other devices."""
    # After the hook that checks shapes.
    from longspan.ops.scan import operators as op

    with ExitStack() as stack:
        if request.param == "plain":
            for each in (op.lerp_scan, op.lerp_scan_backward, op.softmax_gates, op.softmax_gates_backward):
                stack.enter_context(each.set_kernel_enabled("cpu", enabled=False))
        yield str(request.param)
