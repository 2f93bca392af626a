"""News, users and impressions in MIND's format whose preferences are known, and the best AUC that these allow.

    python benchmarks/recommendation.py --out FOLDER [--users 10000] [--news 5000] [--impressions 4] [--clicks 50]
                                        [--candidates 20] [--distance 0] [--seed 0] [--json FILE]

Each news item is about one of 20 topics, of which words of its title and its abstract, its category, and often an
entity tell. Each user is interested in three topics, by weights of 0.5, 0.3 and 0.2. Nine clicks of ten in a history
are on news of these topics, by weight, and the others on any. A candidate is clicked with probability
1 / (1 + exp(3.5 - 8 w)). Here w is the weight of its topic for the user, zero for most topics. Impressions where none
or all are clicked are drawn again. The best possible AUC ranks candidates by these probabilities.

With `--distance D`, only the click that is D back matters: of 20 topics ten are never anybody's interest, all other
clicks of the history are on news of these, and the user's interest is the topic of that one click, with a weight of
0.6. Candidates are of the other ten topics, so that nothing else tells them apart. `data.history=0` has histories read
whole.

FOLDER gets MIND_train and MIND_dev, with news.tsv, behaviors.tsv and entity_embedding.vec each, and best.json with the
best possible AUC of either. MIND_dev has the last tenth of the impressions, and all of a tenth of the users; a fifth of
the news is only there, as candidates. `data.path=FOLDER` trains on them.
"""

import argparse
import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
from tabulate import tabulate

from longspan.errors import UserError
from longspan.machine.environment import environment
from longspan.tasks.recommendation.scores import recommendation_scores

TOPICS, WORDS, COMMON, ENTITIES = 20, 40, 300, 5
WEIGHTS = (0.5, 0.3, 0.2)
ONLY = 0.6
BIAS, SLOPE = 3.5, 8.0
#: How many clicks there may be before the one that matters.
BEFORE = 20
ENTITY_DIM = 100
BEGIN = datetime(2019, 11, 9, tzinfo=UTC)


@dataclass(frozen=True)
class World:
    """What is known of news and users.

    Attributes:
        topic: The topic of each news item, `(n,)`.
        old: How many of them training has, the first ones.
        weights: How much each topic interests each user, `(u, topics)`.
        known: How many users training has, the first ones.
        shown: How many of the topics candidates are about, the first ones.
    """

    topic: np.ndarray
    old: int
    weights: np.ndarray
    known: int
    shown: int


def make_world(users: int, news: int, distance: int, random: np.random.Generator) -> World:
    """Draw topics of news and interests of users."""
    topic = random.permutation(np.arange(news) % TOPICS)
    weights = np.zeros((users, TOPICS))
    shown = TOPICS // 2 if distance else TOPICS
    chosen = random.permuted(np.tile(np.arange(shown), (users, 1)), axis=1)
    for place, weight in enumerate((ONLY,) if distance else WEIGHTS):
        weights[np.arange(users), chosen[:, place]] = weight
    return World(topic, news * 4 // 5, weights, users * 9 // 10, shown)


def history(world: World, user: int, clicks: int, distance: int, random: np.random.Generator) -> np.ndarray:
    """Draw what a user clicked on before, oldest first."""
    weights = world.weights[user]
    if not distance:
        topics = random.choice(TOPICS, size=clicks, p=0.9 * weights / weights.sum() + 0.1 / TOPICS)
    else:
        topics = random.integers(TOPICS // 2, TOPICS, size=distance + int(random.integers(BEFORE)))
        topics[-distance] = weights.argmax()
    old = world.topic[: world.old]
    counts = np.bincount(old, minlength=TOPICS)
    places = (np.cumsum(counts) - counts)[topics] + (random.random(len(topics)) * counts[topics]).astype(np.int64)
    found: np.ndarray = np.argsort(old, kind="stable")[places]
    return found


def impression(
    world: World, user: int, size: int, dev: bool, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw candidates; return them with the probability of a click on each, and which were clicked."""
    there = world.topic if dev else world.topic[: world.old]
    candidates = np.flatnonzero(there < world.shown)
    while True:
        shown = random.choice(candidates, size=size, replace=False)
        chances = 1 / (1 + np.exp(BIAS - SLOPE * world.weights[user, world.topic[shown]]))
        clicked = random.random(size) < chances
        if clicked.any() and not clicked.all():
            return shown, chances, clicked


def write_news(folder: Path, world: World, count: int, seed: int) -> None:
    """Write the first `count` news items, and the vectors of the entities in them."""
    random = np.random.default_rng([seed, 1])
    with (folder / "news.tsv").open("w", encoding="utf-8") as file:
        for number, topic in enumerate(world.topic):
            own = [f"t{topic}w{word}" for word in random.choice(WORDS, size=7, replace=False)]
            common = [f"w{word}" for word in random.integers(COMMON, size=25)]
            title = random.permutation([*own[:3], *common[:6]])
            abstract = random.permutation([*own[3:], *common[6:]])
            entity = f"Q{topic * ENTITIES + int(random.integers(ENTITIES))}"
            entities = json.dumps([{"Label": own[0], "Type": "C", "WikidataId": entity}]) if number % 2 else "[]"
            fields = [f"N{number + 1}", f"topic{topic}", f"topic{topic}part{number % 3}", " ".join(title)]
            fields += [" ".join(abstract), f"https://example.org/{number + 1}", entities, "[]"]
            if number < count:
                file.write("\t".join(fields) + "\n")
    centres = random.normal(size=(TOPICS, ENTITY_DIM))
    vectors = np.repeat(centres, ENTITIES, axis=0) + random.normal(size=(TOPICS * ENTITIES, ENTITY_DIM))
    with (folder / "entity_embedding.vec").open("w", encoding="utf-8") as file:
        for number, vector in enumerate(vectors):
            file.write("\t".join([f"Q{number}", *(f"{value:.6f}" for value in vector)]) + "\t\n")


def write_data(args: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Write both splits; return the best possible scores of each."""
    random = np.random.default_rng(args.seed)
    world = make_world(args.users, args.news, args.distance, random)
    folders = {split: args.out / f"MIND_{split}" for split in ("train", "dev")}
    for split, folder in folders.items():
        folder.mkdir(parents=True, exist_ok=True)
        write_news(folder, world, len(world.topic) if split == "dev" else world.old, args.seed)
    users = random.permutation(np.repeat(np.arange(args.users), args.impressions))
    places = np.arange(len(users))
    dev = (places >= len(users) * 9 // 10) | (users >= world.known)
    histories = [history(world, user, args.clicks, args.distance, random) for user in range(args.users)]
    known: dict[str, list[Any]] = {split: [] for split in folders}
    files = {split: (folder / "behaviors.tsv").open("w", encoding="utf-8") for split, folder in folders.items()}
    for place, user in zip(places.tolist(), users.tolist(), strict=True):
        split = "dev" if dev[place] else "train"
        shown, chances, clicked = impression(world, user, args.candidates, bool(dev[place]), random)
        known[split].append((user, shown, chances, clicked))
        time = (BEGIN + timedelta(minutes=place)).strftime("%m/%d/%Y %I:%M:%S %p")
        before = " ".join(f"N{item + 1}" for item in histories[user])
        candidates = " ".join(f"N{item + 1}-{int(hit)}" for item, hit in zip(shown, clicked, strict=True))
        files[split].write(f"{len(known[split])}\tU{user + 1}\t{time}\t{before}\t{candidates}\n")
    for file in files.values():
        file.close()
    return {split: best(rows, len(world.topic)) for split, rows in known.items()}


def best(rows: list[tuple[int, np.ndarray, np.ndarray, np.ndarray]], news: int) -> dict[str, float]:
    """Return the scores of the true probabilities."""
    users, shown, chances, clicked = zip(*rows, strict=True)
    found = recommendation_scores(
        np.concatenate(chances),
        np.concatenate(clicked),
        np.cumsum([0, *map(len, shown)]),
        users=np.array(users),
        items=np.concatenate(shown),
        popularity=np.zeros(news, dtype=np.int64),
    )
    return {name: value for name, value in found.numbers().items() if name not in ("coverage", "novelty")}


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False, description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--users", type=int, default=10_000)
    parser.add_argument("--news", type=int, default=5_000)
    parser.add_argument("--impressions", type=int, default=4, help="impressions of each user")
    parser.add_argument("--clicks", type=int, default=50, help="clicks in each history")
    parser.add_argument("--candidates", type=int, default=20, help="candidates in each impression")
    parser.add_argument(
        "--distance", type=int, default=0, help="how far back the only click that matters is; 0: all do"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the best possible scores here too")
    args = parser.parse_args()
    if args.news < 5 * TOPICS or args.candidates > args.news * 2 // 5 or args.candidates < 2 or args.users < 10:
        raise UserError(
            f"expected at least 10 users, {5 * TOPICS} news items and 2 candidates, two fifths of the news at most, "
            f"got {args.users}, {args.news} and {args.candidates}; change them."
        )
    scores = write_data(args)
    settings = {name: value for name, value in vars(args).items() if name not in ("out", "json")}
    result = json.dumps({"result": scores, "settings": settings, "environment": environment()}, indent=1)
    for path in filter(None, (args.out / "best.json", args.json)):
        path.write_text(result, encoding="utf-8")
    rows = [[split, *(f"{value:.4f}" for value in found.values())] for split, found in scores.items()]
    print(tabulate(rows, ["best possible", *scores["dev"]], tablefmt="github", disable_numparse=True))


if __name__ == "__main__":
    main()
