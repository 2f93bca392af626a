"""What results are measured with, where parts of it are missing; and the version."""

import json
from importlib import metadata

import pytest
import torch

import longspan
from longspan import cli
from longspan.machine.environment import environment


def test_without_git_and_package_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(metadata, "version", none)
    found = environment()
    assert set(found["packages"].values()) == {None}
    assert found["commit"] is None
    assert longspan.__version__ == "unknown"
    json.dumps(found)


def test_how_products_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_float32_matmul_precision()
    try:
        for precision in ("high", "highest"):
            torch.set_float32_matmul_precision(precision)
            assert environment()["float32_matmul_precision"] == precision
    finally:
        torch.set_float32_matmul_precision(before)
    assert environment()["cpu_capability"] == torch.backends.cpu.get_cpu_capability() != ""

    def mixed() -> str:
        raise RuntimeError("PyTorch says this after somebody set torch.backends.mkldnn.matmul.fp32_precision")

    monkeypatch.setattr(torch, "get_float32_matmul_precision", mixed)
    assert isinstance(environment()["float32_matmul_precision"], str)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert longspan.__version__ == metadata.version("longspan")
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"longspan {longspan.__version__}\n"
