"""What two processes train one after the other, run by `torchrun`; see `test_tasks_in_two_processes.py`."""

import gc
import json
import sys
from pathlib import Path

from longspan import recipes, train
from longspan.training import processes


def main(folder: Path) -> None:
    sys.path.insert(0, str(folder))
    outside = ("sensors", "digits")
    for task, overrides in json.loads((folder / "overrides.json").read_text()).items():
        for where, more in {"two": [], "parts": ["training.fsdp=full_shard"]}.items():
            keys = [*overrides, *more, "training.per_device_train_batch_size=2"]
            recipe = recipes.load(str(folder / f"{task}.toml"), keys, allow_imports=outside)
            train(recipe, run=folder / f"{task} in {where}", progress=False, allow_imports=outside)
        # What is imported stays; accelerate collects three times in every training run.
        gc.collect()
        gc.freeze()
        print(f"process {processes.rank()} ended {task}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
