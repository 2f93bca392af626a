"""Shared by all tests: determinism, and the project's shape annotations checked at run time."""

import os

import pytest
import torch
from hypothesis import settings
from jaxtyping import install_import_hook

# Only where tensors are handled: annotations elsewhere are mypy's business.
install_import_hook(["longspan.ops", "longspan.mixers", "longspan.positions", "longspan.backbone"], "beartype.beartype")

settings.register_profile("longspan", deadline=None, derandomize=True, max_examples=15, database=None)
settings.load_profile("longspan")


@pytest.fixture(autouse=True)
def _deterministic(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    # One thread per worker when tests run side by side.
    if "PYTEST_XDIST_WORKER" in os.environ:
        torch.set_num_threads(1)
