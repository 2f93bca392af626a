"""Measure how faithful explanations are: what deleting the highest scores changes, against other scores.

    python benchmarks/faithfulness.py RUN DATA [--documents 200] [--split test] [--json FILE]

RUN is a trained run of documents with classes, DATA what it is tested on, as `longspan evaluate --data` takes it; 200
documents of it are drawn. For each, its predicted class is explained by every method. Positions of the highest scores,
1, 5, 10, 20 and 50 % of them, are deleted (comprehensiveness: how much the probability falls, more is better), or kept
alone (sufficiency: less is better). Rows are means over documents, with the share of 2,000 paired bootstrap samples in
which a method is better than random scores, and than gradient times input. `randomised` are the scores of removal of a
model with random weights: scores that were as good would say nothing about the model.
"""

import argparse
import copy
import dataclasses
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tabulate import tabulate
from tqdm import tqdm

from longspan.explanations.faithfulness import Faithfulness, by_chance, faithfulness
from longspan.explanations.methods import METHODS, removal
from longspan.explanations.question import Question
from longspan.tasks.base.case import explained
from longspan.verbs.predict import rows_of_source
from longspan.verbs.runs import load_run

SAMPLES = 2000


def randomised(model: Any) -> Any:
    """Return the model with the weights of its network drawn anew; counts stay."""
    other = copy.deepcopy(model)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for weight in other.parameters():
            weight.data = torch.randn_like(weight) * weight.std().nan_to_num(0.0)
    return other.eval()


def measured(run: Any, other: Any, row: Any) -> dict[str, Faithfulness]:
    """Return what deletions say of each method's scores of a document."""
    found, case = {}, run.task.case(run, row, "", None)
    question = case.question
    for method in METHODS:
        explanation = explained(case, method, False)
        found[method] = faithfulness(question, _at_positions(question, explanation.scores))
        if "network" in explanation.parts:
            network = _at_positions(question, explanation.parts["network"])
            found[f"{method}, network alone"] = faithfulness(question, network)
    found["randomised"] = faithfulness(question, removal(dataclasses.replace(question, model=other)))
    found["random"] = by_chance(question)
    return found


def _at_positions(question: Question, scores: Sequence[float]) -> torch.Tensor:
    """Return scores of real positions as those of all."""
    return torch.zeros(len(question.real)).masked_scatter(question.real, torch.tensor(scores))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--documents", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write each document's numbers")
    given = parser.parse_args()
    run = load_run(given.run)
    rows = list(rows_of_source(run, given.data, run.recipe.data, None))
    chosen = random.Random(given.seed).sample(rows, min(given.documents, len(rows)))
    other = randomised(run.model)
    found = [measured(run, other, row) for row in tqdm(chosen, "Documents")]
    draws = np.random.default_rng(given.seed).integers(0, len(found), (SAMPLES, len(found)))
    table = []
    values = {
        (name, what): np.array([getattr(one[name], what) for one in found])
        for name in found[0]
        for what in ("comprehensiveness", "sufficiency")
    }

    def better(name: str, rival: str) -> str:
        difference = values[name, "comprehensiveness"] - values[rival, "comprehensiveness"]
        return "" if name == rival else f"{float((difference[draws].mean(1) > 0).mean()):.3f}"

    for name in found[0]:
        means = [f"{values[name, what].mean():.3f}" for what in ("comprehensiveness", "sufficiency")]
        table.append([name, *means, better(name, "random"), better(name, "gradient")])
    headers = ["scores", "comprehensiveness", "sufficiency", "better than random", "better than gradient x input"]
    print(f"{len(found)} documents of {given.data.name}")
    print(tabulate(table, headers, disable_numparse=True, colalign=("left", *["right"] * 4)))
    if given.json:
        told = [{name: dataclasses.asdict(each) for name, each in one.items()} for one in found]
        given.json.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
