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
        recipe = recipes.load(
            str(folder / f"{task}.toml"), [*overrides, "training.per_device_train_batch_size=2"], allow_imports=outside
        )
        train(recipe, run=folder / f"{task} in two", progress=False, allow_imports=outside)
        # What is imported stays; accelerate collects three times in every training run.
        gc.collect()
        gc.freeze()
        print(f"process {processes.rank()} ended {task}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
