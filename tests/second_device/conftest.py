"""These tests need a process in which PyTorch has another device: `make test-device`. Other runs leave them out."""

import os
import sys
from pathlib import Path

if os.environ.get("ACCELERATE_TORCH_DEVICE", "").startswith("second"):
    import second_device

    second_device.register()
    sys.path.append(str(Path(__file__).parents[1] / "training"))
else:
    collect_ignore_glob = ["test_*.py"]
