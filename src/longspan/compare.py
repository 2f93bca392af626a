"""Train several mixers on one recipe, several seeds each, and set quality against cost."""

import json
import os
import signal
import statistics
import subprocess
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from longspan import mixers, recipes, report, tasks
from longspan.errors import UserError
from longspan.recipes.values import literal
from longspan.report import pictures


def compare(
    recipe: str, names: Sequence[str], seeds: int = 3, overrides: Sequence[str] = (), folder: Path | None = None
) -> dict[str, Any]:
    """Train each mixer with seeds 0 to `seeds - 1`, one process after another, and summarise the runs.

    Each run has a process of its own, so that its peak memory is its own. Finished runs are kept and unfinished ones
    go on from their checkpoint, so that calling this again completes what was interrupted.

    Args:
        recipe: Name or path of a recipe.
        names: Mixers, each put in place of the recipe's own; "a+b" is a hybrid of the two.
        seeds: Runs of each mixer.
        overrides: As for `longspan.recipes.load`.
        folder: Where the runs, as MIXER-SEED, and the results go; default `runs/compare-RECIPE`.

    Returns:
        `runs`, one for each mixer and seed: `mixer`, `seed`, `folder`, and the scores and costs of its `metrics.json`
        or the `error` that ended it; `summary`, one row for each mixer with a finished run: for every split and every
        score of the task `SPLIT_SCORE`, such as `test_accuracy`, and `tokens_per_second`, each with its `mean` and
        `spread` (standard deviation over seeds, None for one seed), the largest `peak_memory_bytes`, `parameters`, and
        `seeds`, the number of finished runs. It is also written to `comparison.json`, `comparison.md` and
        `comparison.png`.

    Raises:
        UserError: An unknown mixer or recipe, before anything is trained; a folder that holds a run of another
            recipe; or no run succeeded.
    """
    names = list(dict.fromkeys(names))
    if not names or seeds < 1:
        raise UserError(f"expected at least one mixer and one seed, but got {len(names)} and {seeds}.")
    for name in names:
        for mixer in name.split("+"):
            mixers.load(mixer)
    options = _options(recipe, names, overrides)
    plan = [(name, seed, _settings(name, seed, overrides, options)) for seed in range(seeds) for name in names]
    wanted = [recipes.load(recipe, settings) for *_, settings in plan]
    wanted[0].require_data()
    folder = folder or Path("runs") / f"compare-{wanted[0].name}"
    folder.mkdir(parents=True, exist_ok=True)
    task = tasks.load(wanted[0].task)
    runs = []
    for number, ((name, seed, settings), resolved) in enumerate(zip(plan, wanted, strict=True), 1):
        run_dir = folder / f"{name}-{seed}"
        row: dict[str, Any] = {"mixer": name, "seed": seed, "folder": str(run_dir)}
        done = _is_finished(run_dir, resolved)
        print(f"[{number}/{len(plan)}] {run_dir}{': finished before' if done else ''}", file=sys.stderr)
        error = None if done else _train(recipe, settings, run_dir)
        runs.append(row | ({"error": error} if error else _outcome(run_dir, task.SCORES)))
    summary = [found for name in names if (found := _summary(name, runs, task.SCORES))]
    result: dict[str, Any] = {
        "recipe": recipe,
        "task": wanted[0].task,
        "overrides": list(overrides),
        "folder": str(folder),
    }
    result |= {"runs": runs, "summary": summary}
    (folder / "comparison.json").write_text(json.dumps(result, indent=2), encoding="utf-8")
    if not summary:
        raise UserError(f"none of the {len(runs)} runs succeeded; the first ended with: {runs[0]['error']}")
    text = f"# Mixers compared on {wanted[0].name}\n\n{report.comparison_summary(result, 'github')}\n"
    (folder / "comparison.md").write_text(text, encoding="utf-8")
    pictures.comparison(summary, task.SCORES, folder / "comparison.png", lower_is_better=task.LOWER_IS_BETTER)
    return result


def _options(recipe: str, names: Sequence[str], overrides: Sequence[str]) -> dict[str, Any]:
    """Return the options that recipe and overrides hold for any of the compared mixers."""
    used = [*recipes.load(recipe).model.get("mixers", []), *(mixer for name in names for mixer in name.split("+"))]
    found: dict[str, Any] = recipes.load(recipe, [f"model.mixers={json.dumps(used)}", *overrides]).model.get(
        "mixer_options", {}
    )
    return found


def _settings(name: str, seed: int, overrides: Sequence[str], options: Mapping[str, Any]) -> list[str]:
    used = name.split("+")
    # A model refuses options for mixers that it does not have.
    own = literal({mixer: values for mixer, values in options.items() if mixer in used})
    return [*overrides, f"model.mixer_options={own}", f"model.mixers={json.dumps(used)}", f"training.seed={seed}"]


def _is_finished(run_dir: Path, wanted: recipes.Recipe) -> bool:
    """Say whether `run_dir` holds a finished run of this recipe; another recipe's run is never overwritten."""
    if not (run_dir / "recipe.toml").exists():
        return False
    found = recipes.load(str(run_dir / "recipe.toml"))
    if found.to_toml() != wanted.to_toml():
        raise UserError(
            f"{str(run_dir)!r} holds a run with other settings than this comparison's: move or delete it, or name "
            "another folder with --run."
        )
    return (run_dir / "metrics.json").exists()


def _train(recipe: str, settings: Sequence[str], run_dir: Path) -> str | None:
    """Train in a process of its own; return None, or what ended it."""
    command = [sys.executable, "-m", "longspan", "train", recipe, *settings, "--run", str(run_dir), "--json"]
    if (run_dir / "recipe.toml").exists():
        command.append("--resume")
    last: deque[str] = deque(maxlen=50)
    # In a process group of its own, so that one ctrl-C reaches it once: it saves a checkpoint, a second one kills it.
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, process_group=0) as process:
        interrupted = False
        while True:
            try:
                text = _piece(process)
            except KeyboardInterrupt:
                interrupted = True
                process.send_signal(signal.SIGINT)
                continue
            if not text:
                break
            last.append(text)
            sys.stderr.write(text)
            sys.stderr.flush()
    if interrupted or process.returncode == 130:
        raise KeyboardInterrupt
    if process.returncode == 0:
        return None
    lines = [line.strip() for line in "".join(last).splitlines() if line.strip()]
    told = [line.removeprefix("longspan: ") for line in lines if line.startswith("longspan: ")] or lines
    return told[-1] if told else f"the process ended with code {process.returncode}"


def _piece(process: subprocess.Popen[bytes]) -> str:
    """The next piece of what it says, not a line: a progress bar has none; empty at the end."""
    assert process.stderr is not None
    return os.read(process.stderr.fileno(), 65536).decode("utf-8", errors="replace")


def _outcome(run_dir: Path, scores: Mapping[str, str]) -> dict[str, Any]:
    metrics = json.loads((run_dir / "metrics.json").read_text(encoding="utf-8"))
    costs = {key: metrics[key] for key in ("tokens_per_second", "peak_memory_bytes", "parameters", "seconds")}
    splits = [split for split in ("validation", "test") if metrics.get(split)]
    return costs | {split: {score: metrics[split][score] for score in scores} for split in splits}


def _summary(name: str, runs: Sequence[dict[str, Any]], names: Mapping[str, str]) -> dict[str, Any] | None:
    done = [run for run in runs if run["mixer"] == name and "error" not in run]
    if not done:
        return None
    scores = {
        f"{split}_{score}": _mean_and_spread([run[split][score] for run in done])
        for split in ("validation", "test")
        for score in names
        if all(split in run for run in done)
    }
    return {
        "mixer": name,
        **scores,
        "tokens_per_second": _mean_and_spread([run["tokens_per_second"] for run in done]),
        "peak_memory_bytes": max(run["peak_memory_bytes"] for run in done),
        "parameters": done[0]["parameters"],
        "seeds": len(done),
    }


def _mean_and_spread(values: Sequence[float]) -> dict[str, float | None]:
    return {"mean": statistics.fmean(values), "spread": statistics.stdev(values) if len(values) > 1 else None}
