"""Files of the guide on clusters: a scheduler that stops the job and starts it again needs no person."""

import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from forked import ended, fork
from transformers import Trainer

from longspan import cli

GUIDE = Path(__file__).parents[2] / "docs/guides/clusters.md"
SMALL = ["model.dim=8", "model.heads=1", "model.depth=1", "model.wide=false", "data.vocab_size=200"]


def commands() -> dict[str, list[str]]:
    """The command of each file, as words."""
    blocks = dict(re.findall(r"```(sh|yaml)\n(#!.*?|name:.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL))
    (kubernetes,) = re.findall(r"```yaml\n(apiVersion.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    job, sky = yaml.safe_load(kubernetes), yaml.safe_load(blocks["yaml"])
    assert job["spec"]["podFailurePolicy"]["rules"][1]["onExitCodes"]["values"] == [2]
    # Kubernetes allows a policy of failures only with it.
    assert job["spec"]["template"]["spec"]["restartPolicy"] == "Never"
    assert list(sky["file_mounts"]) == ["/data"]
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert "#SBATCH --requeue" in blocks["sh"]
    script = blocks["sh"].strip().splitlines()[-1].removeprefix("srun ").split()
    return {"SLURM": script, "SkyPilot": sky["run"].split(), "Kubernetes": container["args"]}


@pytest.mark.slow
def test_the_command_of_each_file_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    found = {tuple(word.replace("/data/", "") for word in words) for words in commands().values()}
    ((program, *arguments),) = found
    assert program == "longspan"
    for label in ("aunt", "bank"):
        for number in range(40):
            path = tmp_path / "letters" / label / f"{number}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"Dear {label}, this is letter {number}.", encoding="utf-8")
    usual = Trainer.training_step

    def work(stop: bool) -> int:
        os.chdir(tmp_path)

        def training_step(self: Trainer, *args: Any, **options: Any) -> Any:
            if stop and self.state.global_step == 3:
                os.kill(os.getpid(), signal.SIGTERM)
            return usual(self, *args, **options)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Trainer, "training_step", training_step)
            return cli.main([*arguments, *SMALL, "training.max_steps=8", "training.max_minutes=0"])

    run, told = tmp_path / "runs" / "letters", tmp_path / "told"
    assert ended(fork(lambda: work(stop=True), told)) == 130, told.read_text(encoding="utf-8")
    assert "there is no run in runs/letters to resume yet, so that one is started" in told.read_text(encoding="utf-8")
    assert not (run / "metrics.json").exists()
    assert (run / "checkpoints" / "checkpoint-4").is_dir()
    assert ended(fork(lambda: work(stop=False), told)) == 0, told.read_text(encoding="utf-8")
    assert (run / "metrics.json").exists()
