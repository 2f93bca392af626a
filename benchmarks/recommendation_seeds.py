"""How sure scores of recommenders on a small click log are: means of runs, and intervals over the users scored.

    python benchmarks/recommendation_seeds.py [--seeds 5] [--split test] [--draws 1000] --out FOLDER [--json FILE]
                                              key=value ...

Trains the recipe `news` with these settings once for each seed, in new folders, and scores a split with each, with
TF-IDF of titles, and with the baseline `counts`. AUC pools all candidates, whoever they were shown to, and "per user"
is the mean over users with both kinds. Numbers are means over the runs. The interval covers 95 % of the bootstrap
draws. A draw takes users with replacement, with all of their candidates, and all runs score it. The last row has the
difference between the runs and TF-IDF in the same draws.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import roc_auc_score
from tabulate import tabulate

from longspan import recipes, train
from longspan.data.text.processor import tokenizer_of
from longspan.machine.environment import environment
from longspan.tasks.recommendation.baselines.counts import Counts
from longspan.tasks.recommendation.baselines.tfidf import Tfidf
from longspan.tasks.recommendation.items import Items
from longspan.tasks.recommendation.options import RecommendationData
from longspan.tasks.recommendation.ranking import ItemVectors, impression_outputs
from longspan.tasks.recommendation.recorded import Recorded, read_recorded
from longspan.tasks.recommendation.samples import Impressions, labelled
from longspan.tasks.recommendation.scores import recommendation_scores
from longspan.tasks.recommendation.task import names_of
from longspan.verbs.runs import load_run


def scores_of(folder: Path, found: Recorded, split: str) -> np.ndarray:
    """Return what a trained run says of all candidates of a split."""
    run = load_run(folder)
    data = run.recipe.data
    assert isinstance(data, RecommendationData)
    shown = Impressions(labelled(found.splits[split]), names_of(run).user_numbers)
    with ItemVectors(
        run.model, Items.encoded(found.catalogue, tokenizer_of(run.processor), names_of(run), data)
    ) as vectors:
        return impression_outputs(run.model, shown, vectors, batch_size=256, batch_clicks=65536)


def pooled(scores: list[np.ndarray], clicked: np.ndarray, weights: np.ndarray) -> float:
    """Return the mean AUC of these scores, each candidate counted as often as it was drawn."""
    return float(np.mean([roc_auc_score(clicked, each, sample_weight=weights) for each in scores]))


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False, description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("settings", nargs="+", help="key=value, such as data.path=FOLDER")
    parser.add_argument("--out", type=Path, required=True, help="folder for the runs, a new one")
    parser.add_argument("--seeds", type=int, default=5, help="how many runs there are")
    parser.add_argument("--split", default="test")
    parser.add_argument("--draws", type=int, default=1000, help="draws of the bootstrap")
    parser.add_argument("--json", type=Path, help="write the result here")
    arguments = parser.parse_args()
    data = recipes.load("news", arguments.settings).data
    assert isinstance(data, RecommendationData)
    found = read_recorded(data)
    shown = Impressions(labelled(found.splits[arguments.split]))
    training = Impressions(labelled(found.splits["train"]))
    candidates: dict[str, list[np.ndarray]] = {
        "TF-IDF of titles": [Tfidf().scorer(found, training, data).score(shown)],
        "counts": [Counts().scorer(found, training, data).score(shown)],
        "longspan": [],
    }
    for seed in range(arguments.seeds):
        folder = arguments.out / f"seed-{seed}"
        train("news", [*arguments.settings, f"training.seed={seed}"], run=folder)
        candidates["longspan"].append(scores_of(folder, found, arguments.split))
    users, owner = np.unique(shown.names, return_inverse=True)
    owner, clicked = owner[shown.candidates.rows], shown.clicked == 1
    random = np.random.default_rng(0)
    draws: dict[str, list[float]] = {name: [] for name in candidates}
    while len(draws["longspan"]) < arguments.draws:
        weights = np.bincount(random.integers(len(users), size=len(users)), minlength=len(users))[owner]
        if 0 < (weights * clicked).sum() < weights.sum():
            for name, scores in candidates.items():
                draws[name].append(pooled(scores, clicked, weights))
    draws["difference"] = (np.array(draws["longspan"]) - np.array(draws["TF-IDF of titles"])).tolist()
    result: dict[str, dict[str, Any]] = {}
    for name, scores in candidates.items():
        measured = [
            recommendation_scores(
                each, shown.clicked, shown.candidates.offsets, users=shown.names, items=shown.candidates.values,
                popularity=found.popularity(),
            ).numbers()
            for each in scores
        ]  # fmt: skip
        runs = [numbers["pooled_auc"] for numbers in measured]
        per_user = float(np.mean([numbers["auc"] for numbers in measured]))
        result[name] = {"pooled_auc": float(np.mean(runs)), "runs": runs, "per_user": per_user}
    ours, rival = (np.mean(result[name]["runs"]) for name in ("longspan", "TF-IDF of titles"))
    result["difference"] = {"pooled_auc": float(ours - rival)}
    for name, row in result.items():
        row["interval"] = np.quantile(draws[name], [0.025, 0.975]).tolist()
    table = [
        [
            name,
            f"{row['pooled_auc']:.3f}",
            "{:.3f} to {:.3f}".format(*row["interval"]),
            ", ".join(f"{each:.3f}" for each in row.get("runs", [])),
            f"{row['per_user']:.3f}" if "per_user" in row else "",
        ]
        for name, row in result.items()
    ]
    print(tabulate(table, ["", "AUC", "95 %", "runs", "per user"], tablefmt="github", disable_numparse=True))
    if arguments.json:
        facts = {"result": result, "settings": arguments.settings, "environment": environment()}
        arguments.json.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
