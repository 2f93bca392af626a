"""How much of the evidence for a question is read where a number of words is selected (`data.select_words`).

    python benchmarks/selected_words.py data.path=qmsum --split validation

Evidence are the turns that QMSum marks for its specific questions. For each question, the words of evidence that are
selected are counted, as a share of those that could be: all of them, or as many as are selected.
"""

import argparse

import numpy as np
from tabulate import tabulate

from longspan import recipes
from longspan.tasks.summarisation.reading import ranked

SPREADS = (0.0, 2.0, 4.0, 8.0, 16.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("overrides", nargs="+", metavar="data.KEY=VALUE")
    parser.add_argument("--split", default="validation")
    parser.add_argument("--words", default="500,1000,2000")
    given = parser.parse_args()

    recipe = recipes.load("evidence", given.overrides)
    rows = recipe.task.splits(recipe.data).splits[given.split]
    wanted = [int(words) for words in given.words.split(",")]
    found: dict[float, list[list[float]]] = {spread: [] for spread in SPREADS}
    for row in rows:
        sizes = np.array([len(part.split()) for part in row["parts"]])
        for question, numbers in zip(row["questions"], row["evidence"], strict=True):
            if not numbers:
                continue
            gold = np.isin(np.arange(len(sizes)), numbers)
            for spread, shares in found.items():
                order = ranked(row["parts"], question, spread)
                # Of the last part that is read, only the first words may fit.
                before = np.cumsum(sizes[order]) - sizes[order]
                read = [np.clip(words - before, 0, sizes[order])[gold[order]].sum() for words in wanted]
                most = [min(words, sizes[gold].sum()) for words in wanted]
                shares.append((np.array(read) / most).tolist())
    table = [[spread, *(f"{share:.1%}" for share in np.mean(shares, 0))] for spread, shares in found.items()]
    print(f"{len(found[0.0])} questions of the {given.split} split")
    print(tabulate(table, ["spread (turns)", *(f"{words:,} words" for words in wanted)]))


if __name__ == "__main__":
    main()
