"""Few labels and perhaps many texts without: `classify`, `data.unlabelled`, and simpler rivals, on draws.

    python benchmarks/few_labels.py TRAIN TEST [TEXTS] [--labels 20,100,500] [--draws 5] [--networks 1] [--minutes 10]

TRAIN and TEST are tables with the columns text and label, TEXTS a table of texts. Each draw takes as many rows of each
class from TRAIN. The rivals are scikit-learn's linear support vector machine on TF-IDF of words, and logistic
regression on TF-IDF of words and pairs, fitted to the draw, and on latent semantic analysis (TruncatedSVD of TF-IDF),
fitted to the texts. Of the regressions, C is the best of five folds.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean, stdev

import numpy as np
import pandas as pd
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegressionCV
from sklearn.pipeline import make_pipeline
from sklearn.svm import LinearSVC

import longspan
from longspan import recipes


def draw(rows: pd.DataFrame, labels: int, seed: int) -> pd.DataFrame:
    """As many rows of each class, `labels` in all."""
    names = sorted(rows["label"].unique())
    shuffled = rows.sample(frac=1, random_state=seed)
    return pd.concat([shuffled[shuffled["label"] == name].head(labels // len(names)) for name in names])


def rivals(few: pd.DataFrame, test: pd.DataFrame, latent: Sequence[tuple[np.ndarray, ...]]) -> dict[str, float]:
    """Test accuracy of scikit-learn's models; `latent` has coordinates of training and test rows."""
    folds = min(5, int(few["label"].value_counts().min()))
    model = {"cv": folds, "Cs": [0.1, 1, 10, 100], "max_iter": 1000, "scoring": "neg_log_loss"}
    words = make_pipeline(TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True), LogisticRegressionCV(**model))
    predicted = words.fit(few["text"], few["label"]).predict(test["text"])
    found = {"TF-IDF": float((predicted == test["label"]).mean())}
    machine = make_pipeline(TfidfVectorizer(sublinear_tf=True), LinearSVC())
    predicted = machine.fit(few["text"], few["label"]).predict(test["text"])
    found["linear SVM"] = float((predicted == test["label"]).mean())
    for train, other in latent:
        fitted = LogisticRegressionCV(**model).fit(train[few.index], few["label"])
        found[f"LSA, {train.shape[1]} directions"] = float((fitted.predict(other) == test["label"]).mean())
    return found


def counted(few: pd.DataFrame, test: pd.DataFrame, texts: str) -> dict[str, float]:
    """Test accuracy of the n-gram part of `classify` alone."""
    recipe = recipes.load("classify", [f"data.unlabelled={texts}"] if texts else []).reading(
        {"train": few, "test": test}
    )
    return {"counts": recipe.task.counts()().fit(recipe).scores["test"].accuracy}


def trained(few: pd.DataFrame, test: pd.DataFrame, texts: str, minutes: float) -> dict[str, float]:
    """Test accuracy of `classify` and of its parts."""
    with tempfile.TemporaryDirectory() as folder:
        settings = {"unlabelled": texts} if texts else {}
        data = {"train": few, "test": test}
        where = Path(folder, "run")
        run = longspan.train("classify", data=data, run=where, max_minutes=minutes, progress=False, **settings)
    return dict(run.details["test_parts"]["values"])


def coordinates(texts: pd.DataFrame, tables: Sequence[pd.DataFrame]) -> list[tuple[np.ndarray, ...]]:
    """Latent coordinates of tables, once for each number of directions."""
    vectors = TfidfVectorizer(min_df=5, sublinear_tf=True, max_features=30_000).fit(texts["text"])
    projected = TruncatedSVD(100, random_state=0).fit(vectors.transform(texts["text"]))
    found = [projected.transform(vectors.transform(table["text"])) for table in tables]
    return [tuple(values[:, :size] for values in found) for size in (20, 100)]


def measure(args: argparse.Namespace) -> Iterator[dict[str, object]]:
    """Results of each draw."""
    rows, test = (pd.read_json(path, lines=True) for path in (args.train, args.test))
    began = time.process_time()
    latent = coordinates(pd.read_json(args.texts, lines=True), (rows, test)) if args.texts else []
    yield {"latent seconds": time.process_time() - began}
    for labels in args.labels:
        for seed in range(args.draws):
            few = draw(rows, labels, seed)
            found: dict[str, object] = {"labels": labels, "draw": seed, **rivals(few, test, latent)}
            for path in ("", args.texts) if args.texts else ("",):
                began = time.process_time()
                parts = trained(few, test, path, args.minutes) if seed < args.networks else counted(few, test, path)
                parts["seconds"] = time.process_time() - began
                found |= {f"{name}{', with texts' if path else ''}": value for name, value in parts.items()}
            yield found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name in ("train", "test"):
        parser.add_argument(name)
    parser.add_argument("texts", nargs="?", default="")
    parser.add_argument("--labels", type=lambda text: [int(part) for part in text.split(",")], default=[20, 100, 500])
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--networks", type=int, default=1, help="draws on which networks are trained, too")
    parser.add_argument("--minutes", type=float, default=10.0, help="time budget of each training run")
    args = parser.parse_args()
    results = []
    for result in measure(args):
        print(json.dumps(result), flush=True)
        results.append(result)
    for labels in args.labels:
        of_size = [result for result in results if result.get("labels") == labels]
        for name in dict.fromkeys(name for result in of_size for name in result if name not in ("labels", "draw")):
            values = [float(str(result[name])) for result in of_size if name in result]
            spread = f" ± {stdev(values) / len(values) ** 0.5:.3f}" if len(values) > 1 else ""
            print(f"{labels} labels, {name}: {mean(values):.3f}{spread} ({len(values)} draws)")


if __name__ == "__main__":
    main()
