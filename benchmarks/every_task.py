"""Recipes of all tasks on public data: counts, network, both, and the best simpler model, in one table.

    python benchmarks/every_task.py DATA OUT [--only ROW,ROW] [--minutes 6] [--list]

DATA has a folder for each data set, as its publishers pack it; `tables` in it is made by the commands that `--list`
prints. Each row is a comparison of a recipe as it is, seed 0, with its baselines; MINUTES is a limit of each training.
OUT keeps the comparisons: a row that is there is not repeated. Scores are of the test split, where there is one; of
Shakespeare, the last tenth is for validation.
"""

import argparse
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tabulate import tabulate

import longspan
from longspan import recipes

TABLES = """
python benchmarks/passages_and_stars.py DATA/books/train DATA/aclImdb DATA/tables
python benchmarks/spoken_digits.py DATA/fsdd/recordings DATA/tables
python benchmarks/digit_pictures.py DATA/tables/digits --count 2000
python benchmarks/connected_digits.py DATA/fsdd/recordings DATA/tables/joined --only-data
"""


@dataclass(frozen=True)
class Row:
    """A recipe on a data set.

    Attributes:
        recipe: Its name.
        data: Settings of its data, in which "{}" is the folder of all data.
        baselines: Simpler models.
    """

    recipe: str
    data: str
    baselines: str


def _splits(name: str, ending: str) -> str:
    return " ".join(f"data.{split}={{}}/tables/{name}_{split}.{ending}" for split in ("train", "validation", "test"))


ROWS = {
    "film reviews, 25,000": Row("imdb", "data.path={}/aclImdb", "tfidf,nb"),
    "long film reviews, 1,600": Row("movie-reviews", "data.path={}/movie_reviews", "tfidf,nb"),
    "books of passages, several labels": Row("multi-label", _splits("passages", "jsonl"), "tfidf"),
    "stars of reviews, 1,800": Row("regression", _splits("stars", "jsonl"), "tfidf"),
    "parts of speech, EWT": Row("pos", "data.path={}/ud_english_ewt", "crf"),
    "chunks, CoNLL-2000": Row("chunking", "data.path={}/conll2000 data.feature_column=2", "crf"),
    "entities, WikiANN": Row(
        "ner",
        "data.train={}/wikiann_en/train.xz data.validation={}/wikiann_en/dev.xz data.test={}/wikiann_en/test.xz "
        "data.strip=^en:",
        "crf",
    ),
    "entities, Weibo": Row(
        "ner-zh",
        "data.train={}/weibo_ner_zh/weiboNER_2nd_conll.train.xz "
        "data.validation={}/weibo_ner_zh/weiboNER_2nd_conll.dev.xz "
        "data.test={}/weibo_ner_zh/weiboNER_2nd_conll.test.xz data.strip=(?<=.)[0-9]+$ data.mend_labels=true",
        "crf",
    ),
    "characters of Shakespeare": Row("shakespeare", "data.path={}/tinyshakespeare/input.txt.xz", "ngram"),
    "text of Wikipedia, 200,000 words": Row(
        "model-text", "data.train={}/wikitext2/valid.txt.xz data.test={}/wikitext2/test.txt.xz", "ngram"
    ),
    "captions, English to German": Row(
        "translation",
        "data.train={}/multi30k/train.en.gz,{}/multi30k/train.de.gz data.validation={}/multi30k/val.en.gz,"
        "{}/multi30k/val.de.gz data.test={}/multi30k/test_2016_flickr.en.gz,{}/multi30k/test_2016_flickr.de.gz",
        "memory,dictionary,copy",
    ),
    "summaries of meetings": Row(
        "summarisation", "data.path={}/qmsum data.select_words=400", "constant,lead,textrank,bm25,memory"
    ),
    "evidence in meetings": Row("evidence", "data.path={}/qmsum", "bm25,bm25_smoothed,tfidf"),
    "clicks on news": Row("news", "data.path={}/dkn_bing_news", "popular,recent,tfidf,counts"),
    "spoken digits, two speakers": Row("audio", _splits("two", "csv"), "cepstra,mfcc,cnn"),
    "spoken digits, unseen george": Row("audio", _splits("without_george", "csv"), "cepstra,mfcc,cnn"),
    "spoken digits, george to jackson": Row("audio", _splits("george_to_jackson", "csv"), "cepstra,mfcc,cnn"),
    "spoken digits, jackson to george": Row("audio", _splits("jackson_to_george", "csv"), "cepstra,mfcc,cnn"),
    "frames of connected digits": Row(
        "frames",
        " ".join(f"data.{split}={{}}/tables/joined/{split}.jsonl" for split in ("train", "validation", "test")),
        "mfcc",
    ),
    "citations, Cora": Row("nodes", "data.path={}/planetoid/cora.npz", "logistic,sgc,label_propagation,linear"),
    "citations, Citeseer": Row("nodes", "data.path={}/planetoid/citeseer.npz", "logistic,sgc,label_propagation,linear"),
    "excerpts of 20 books, 800": Row(
        "classify",
        "data.train={}/tables/excerpts_train.jsonl data.test={}/tables/excerpts_test.jsonl",
        "tfidf,nb",
    ),
    "pairs of excerpts, same book": Row("pairs", _splits("pairs", "jsonl"), "tfidf"),
    "pictures of digits, 2,000": Row("images", "data.path={}/tables/digits", "cnn,hog,pixels"),
}


def measure(row: Row, data: Path, folder: Path, minutes: float) -> dict[str, Any]:
    """The scores of a row's recipe, of its parts and baselines, on the test split."""
    settings = [part.replace("{}", str(data)) for part in row.data.split()]
    mixers = recipes.load(row.recipe, settings).model.get("mixers", ["additive"])
    settings.append(f"training.max_minutes={minutes}")
    began = sum(os.times()[:4])
    found = longspan.compare(
        row.recipe, ["+".join(mixers)], 1, settings, run=folder / "runs", baselines=row.baselines.split(",")
    )
    seconds = sum(os.times()[:4]) - began
    (run,) = found.runs
    if run.error:
        raise RuntimeError(run.error)
    split = "test" if "test" in run.scores else "validation"
    scores, parts = run.scores[split], run.parts.get(split)
    score = parts.score if parts else scores.headline()
    sign = 1 if scores.higher_is_better(score) else -1
    simple = {one.baseline: getattr(one.scores[split], score) for one in found.baselines if not one.error}
    best = max(simple, key=lambda name: sign * simple[name])
    return {
        "score": score,
        "higher_is_better": sign > 0,
        "counts": parts.values["counts"] if parts else None,
        "network": parts.values["network"] if parts else None,
        "both": getattr(scores, score),
        "interval": parts.intervals["both"] if parts else getattr(scores, "intervals", {}).get(score),
        "simple": simple,
        "best": best,
        "seconds": seconds,
    }


def table(results: dict[str, dict[str, Any]]) -> str:
    """A table of all rows."""

    def written(value: float | None) -> str:
        return "" if value is None else f"{value:.4g}"

    rows = []
    for name, found in results.items():
        low, high = found["interval"] or (None, None)
        between = f" ({written(low)} to {written(high)})" if found["interval"] else ""
        best = f"{written(found['simple'][found['best']])}, {found['best']}"
        parts = [written(found[part]) for part in ("counts", "network")]
        both = f"{written(found['both'])}{between}"
        rows.append([name, ROWS[name].recipe, found["score"], *parts, both, best, round(found["seconds"])])
    head = ["data", "recipe", "score", "counts", "network", "both (95 % interval)", "best simpler model", "CPU s"]
    return tabulate(rows, head, "pipe", disable_numparse=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", type=lambda text: text.split(","), help="rows, by the first letters of their names")
    parser.add_argument("--minutes", type=float, default=6.0)
    parser.add_argument("--list", action="store_true", help="print the rows, and the commands that make tables")
    given = parser.parse_args()
    if given.list:
        print(TABLES, *(f"{name}: longspan compare {row.recipe} {row.data}" for name, row in ROWS.items()), sep="\n")
        return
    results: dict[str, dict[str, Any]] = {}
    for number, (name, row) in enumerate(ROWS.items()):
        folder = given.out.absolute() / f"{number:02}"
        path = folder / "row.json"
        if given.only and not any(name.startswith(part) for part in given.only):
            continue
        if not path.exists():
            try:
                found = measure(row, given.data.absolute(), folder, given.minutes)
            except (longspan.UserError, RuntimeError) as error:
                print(f"{name}: {error}", flush=True)
                continue
            path.write_text(json.dumps(found), encoding="utf-8")
        results[name] = json.loads(path.read_text(encoding="utf-8"))
        print(name, results[name], flush=True)
    print(table(results))


if __name__ == "__main__":
    main()
