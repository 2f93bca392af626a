"""Training and scoring of recommenders beside NRMS as published, and the memory of scoring with mapped vectors.

    python benchmarks/recommendation_speed.py [--histories 50,2000] [--batch 64] [--words 30] [--candidates 5]
                                              [--items 50000] [--vocabulary 16000] [--batch-clicks 16384]
                                              [--repeats 5] [--models NAME,...] [--catalogues 10000,1000000]
                                              [--json FILE]

The rival is NRMS in plain PyTorch as the known collections have it. It reads each title of each history and candidate
for each impression, however often it occurs. Self-attention over words and over clicks is two products and a softmax,
and nothing is masked. Its batches have 64 impressions. With histories longer than 50 these would not fit into memory,
so batches have as many titles as there. Word vectors have width 300 and queries 200. It has 20 heads of width 20.

Our models train and score as the recipe `news` does. A batch has at most 64 impressions and `--batch-clicks` clicks and
candidates (by default as in the recipe; 0: no limit), and its items are read once. Vectors of items are computed once,
before the clock starts, and mapped for scoring. Models with the "sizes of NRMS" have word vectors of width 300, and two
layers of width 400 with 20 heads: one over words and one over clicks. The others have the sizes of the recipe and of
Fastformer's paper. Items are drawn with shares of 1 / rank, as clicks on news are, from `--items` of `--words` words
each.

All rivals alternate in one process, and the numbers are medians. A step of training is drawing and collating the
batch, forward, backward and AdamW.

Memory is measured in a process of its own for each catalogue, by Linux's account. The process alone has "anonymous"
memory (`RssAnon`): after reading the numbers of the titles, with the vectors, and the maximum while scoring 256 users.
Their histories have 50 clicks. Pages of the mapped file count apart: the system takes them back when it needs them.
`--catalogues ""` leaves this out.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from tabulate import tabulate
from torch import Tensor, nn
from turns import medians, settle_allocator

from longspan import recipes
from longspan.cli import use_fastest_exact_products
from longspan.data.batches.by_length import LengthBatches
from longspan.data.batches.drawn import EpochBatches
from longspan.machine.environment import environment
from longspan.models import LongspanForRecommendation
from longspan.tasks.recommendation.items import Items
from longspan.tasks.recommendation.ragged import Ragged
from longspan.tasks.recommendation.ranking import ItemVectors, impression_outputs
from longspan.tasks.recommendation.samples import Collator, Impressions, Samples

RIVAL = "NRMS as published, PyTorch"
#: Clicks in the histories that the rival's batches are made for.
USUAL = 50
USERS = 256
COLUMNS = {
    "impressions_per_second": "training impressions/s",
    "times_training": "times NRMS",
    "users_per_second": "users scored/s",
    "times_scoring": "times NRMS",
    "titles": "titles read/impression",
}
_NRMS = ["model.dim=400", "model.heads=20", "model.embedding_dim=300", "model.depth=1", "model.user_depth=1"]
_LIKE_NRMS = ("dim=400", "heads=20", "feed_forward_dim=400", "depth=1", "user_depth=1")
#: By name, what a run of the recipe would be given.
OURS: dict[str, list[str]] = {
    "nrms": ["model.recommender=nrms"],
    "longspan (sizes of NRMS)": _NRMS,
    "fastformer (sizes of NRMS)": [
        "model.recommender=fastformer",
        *(f"model.recommender_options.{option}" for option in _LIKE_NRMS),
    ],
    "longspan": [],
    "fastformer": ["model.recommender=fastformer"],
}


class AdditiveAttention(nn.Module):
    """Σ_t softmax_t(q·tanh(V x_t + v)) x_t."""

    def __init__(self, dim: int, query_dim: int) -> None:
        super().__init__()
        self.hidden, self.query = nn.Linear(dim, query_dim), nn.Linear(query_dim, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        weights = self.query(self.hidden(x).tanh()).softmax(1)
        pooled: Tensor = (weights * x).sum(1)
        return pooled


class SelfAttention(nn.Module):
    """softmax(QKᵀ/√e)V of each head."""

    def __init__(self, dim: int, heads: int, head_dim: int) -> None:
        super().__init__()
        self.heads, self.head_dim = heads, head_dim
        self.query, self.key, self.value = (nn.Linear(dim, heads * head_dim) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        def heads(layer: nn.Module) -> Tensor:
            split: Tensor = layer(x).unflatten(-1, (self.heads, self.head_dim)).transpose(1, 2)
            return split

        query, key, value = heads(self.query), heads(self.key), heads(self.value)
        weights = (query @ key.transpose(-1, -2) / self.head_dim**0.5).softmax(-1)
        return (weights @ value).transpose(1, 2).flatten(2)


class PublishedNrms(nn.Module):
    """NRMS (Wu et al. 2019) as its known implementations have it: the words of all titles of a batch, one by one."""

    def __init__(self, vocabulary: int, *, word_dim: int = 300, heads: int = 20, head_dim: int = 20) -> None:
        super().__init__()
        dim = heads * head_dim
        self.words = nn.Embedding(vocabulary, word_dim, padding_idx=0)
        self.word_attention, self.word_pooling = SelfAttention(word_dim, heads, head_dim), AdditiveAttention(dim, 200)
        self.click_attention, self.click_pooling = SelfAttention(dim, heads, head_dim), AdditiveAttention(dim, 200)
        self.dropout = nn.Dropout(0.2)

    def read(self, titles: Tensor) -> Tensor:
        """Return the vectors (b, m, dim) of titles (b, m, words)."""
        words = self.dropout(self.words(titles.flatten(0, 1)))
        items: Tensor = self.word_pooling(self.dropout(self.word_attention(words)))
        return items.unflatten(0, titles.shape[:2])

    def forward(self, history: Tensor, candidates: Tensor) -> Tensor:
        """Return scores (b, c) of candidates (b, c, words) after histories (b, h, words)."""
        user = self.click_pooling(self.click_attention(self.read(history)))
        scores: Tensor = (self.read(candidates) @ user.unsqueeze(-1)).squeeze(-1)
        return scores


def make_items(count: int, words: int, vocabulary: int) -> Items:
    """Return a catalogue of random words."""
    values = np.random.default_rng(1).integers(2, vocabulary, count * words)
    titles = Ragged(values, np.arange(count + 1) * words)
    return Items(titles, None, {}, None, pad_id=0, known=np.zeros(count, np.int64))


def make_impressions(count: int, history: int, candidates: int, items: int) -> Impressions:
    """Return impressions, of each of which the first candidate was clicked."""
    random = np.random.default_rng(2)
    shares = 1 / np.arange(1, items + 1)
    shares /= shares.sum()
    columns: dict[str, Any] = {
        "history": list(random.choice(items, (count, history), p=shares)),
        "candidates": list(random.choice(items, (count, candidates), p=shares)),
        "clicked": [[1] + [0] * (candidates - 1)] * count,
        "user": [f"U{row}" for row in range(count)],
        "time": [None] * count,
    }
    return Impressions(Dataset.from_dict(columns))


def build(given: list[str], vocabulary: int) -> tuple[recipes.Recipe, LongspanForRecommendation]:
    """Return the recipe with these overrides, and a new model of it."""
    recipe = recipes.load("news", given)
    config = recipe.task.configure(recipe.model, {"vocab_size": vocabulary, "pad_token_id": 0})
    torch.manual_seed(0)
    return recipe, LongspanForRecommendation(config)


def our_epoch(
    model: LongspanForRecommendation, items: Items, impressions: Impressions, batch: int, clicks: int
) -> tuple[Callable[[], None], float]:
    """Return what trains on each impression once, and how many titles it reads for each."""
    samples = Samples(impressions, negatives=impressions.candidates.sizes[0] - 1, each=True, seed=0)
    collate, optimizer = Collator(items), torch.optim.AdamW(model.parameters())
    batches = EpochBatches(LengthBatches(samples.sizes, batch, max_tokens=clicks, shuffle=True, seed=0))

    def epoch() -> None:
        model.train()
        for drawn in batches:
            loss = model(**collate([samples[each] for each in drawn])).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    titles = sum(len(collate([samples[each] for each in drawn])["input_ids"]) for drawn in batches)
    return epoch, titles / len(samples)


def rival_step(
    model: PublishedNrms, titles: Tensor, impressions: Impressions, batch: int, train: bool
) -> Callable[[], None]:
    """Return what trains on, or scores, a batch of impressions."""
    shown = [impressions[row] for row in range(batch)]
    history, candidates = (
        torch.from_numpy(np.stack([getattr(each, name) for each in shown])) for name in ("history", "candidates")
    )
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        model.train(train)
        with torch.set_grad_enabled(train):
            scores = model(titles[history], titles[candidates])
            if train:
                nn.functional.cross_entropy(scores, torch.zeros(batch, dtype=torch.long)).backward()
                optimizer.step()
                optimizer.zero_grad()

    return step


def compare(
    history: int, items: Items, held: dict[str, tuple[int, ItemVectors]], arguments: argparse.Namespace
) -> dict[str, dict[str, float]]:
    """Return training impressions and users scored per second, and titles read for an impression in training.

    `held` has, by model, how many impressions it scores together, and the vectors of the items.
    """
    together = history + arguments.candidates
    clicks = arguments.batch_clicks
    trained = min(arguments.batch, max(1, clicks // together)) if clicks else arguments.batch
    fitting = min(arguments.batch, max(1, arguments.batch * (USUAL + arguments.candidates) // together))
    impressions, scored = (
        make_impressions(count, history, arguments.candidates, len(items)) for count in (trained, arguments.batch)
    )
    rival = PublishedNrms(arguments.vocabulary)
    titles = torch.from_numpy(items.title.values.reshape(-1, arguments.words))
    training: dict[str, Callable[[], object]] = {RIVAL: rival_step(rival, titles, scored, fitting, True)}
    scoring: dict[str, Callable[[], object]] = {RIVAL: rival_step(rival, titles, scored, fitting, False)}
    read = {RIVAL: float(together)}
    for name, (size, vectors) in held.items():
        model = build(OURS[name], arguments.vocabulary)[1]
        training[name], read[name] = our_epoch(model, items, impressions, arguments.batch, clicks)
        sizes = {"batch_size": size, "batch_clicks": clicks}
        scoring[name] = partial(impression_outputs, vectors.model, scored, vectors, **sizes)
    trainings, scorings = (medians(each, arguments.repeats) for each in (training, scoring))
    found = {
        name: {
            "impressions_per_second": 1000 * (fitting if name == RIVAL else trained) / trainings[name],
            "users_per_second": 1000 * (fitting if name == RIVAL else arguments.batch) / scorings[name],
            "titles": read[name],
        }
        for name in training
    }
    for row in found.values():
        for rate, times in (("impressions_per_second", "times_training"), ("users_per_second", "times_scoring")):
            row[times] = row[rate] / found[RIVAL][rate]
    return found


def resident() -> dict[str, int]:
    """Return the bytes of this process in memory: its own (RssAnon) and of mapped files (RssFile)."""
    lines = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    return {words[0].rstrip(":"): 1024 * int(words[1]) for words in lines if words and words[0].startswith("Rss")}


def memory(count: int, arguments: argparse.Namespace) -> dict[str, int]:
    """Return what scoring with the vectors of `count` items takes, in a process that does nothing else."""
    model = build([], arguments.vocabulary)[1].eval()
    impressions = make_impressions(USERS, USUAL, arguments.candidates, count)
    began = resident()
    items = make_items(count, arguments.words, arguments.vocabulary)
    titles = resident()["RssAnon"]
    with ItemVectors(model, items, progress=True) as vectors:
        computed = resident()
        most = [computed["RssAnon"]]
        impression_outputs(
            model, impressions, vectors, batch_size=64, batch_clicks=arguments.batch_clicks,
            after_batch=lambda: most.append(resident()["RssAnon"]),
        )  # fmt: skip
        mapped = resident()["RssFile"] - began["RssFile"] + resident()["RssShmem"] - began["RssShmem"]
    return {
        "items": count,
        "before": began["RssAnon"],
        "titles": titles - began["RssAnon"],
        "computed": computed["RssAnon"] - titles,
        "scoring": max(most) - computed["RssAnon"],
        "mapped": mapped,
        "vectors": 4 * count * model.config.dim,
    }


def in_a_process(count: int, arguments: argparse.Namespace) -> dict[str, int]:
    command = [sys.executable, __file__, "--only-memory", str(count), "--words", str(arguments.words)]
    command += ["--vocabulary", str(arguments.vocabulary), "--candidates", str(arguments.candidates)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False, description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--histories", default="50,2000", help="clicks in a history")
    parser.add_argument("--batch", type=int, default=64, help="impressions in a batch")
    parser.add_argument("--words", type=int, default=30, help="words in a title")
    parser.add_argument("--candidates", type=int, default=5, help="candidates, of which one was clicked")
    parser.add_argument("--items", type=int, default=50_000, help="items that are drawn from")
    parser.add_argument("--vocabulary", type=int, default=16_000)
    parser.add_argument("--batch-clicks", type=int, default=16_384, help="clicks and candidates in a batch of ours")
    parser.add_argument("--repeats", type=int, default=5, help="timed turns of each candidate")
    parser.add_argument("--models", default=",".join(OURS), help="what is compared with the rival")
    parser.add_argument("--catalogues", default="10000,1000000", help="items held in mapped vectors")
    parser.add_argument("--only-memory", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path, help="write the result here")
    arguments = parser.parse_args()
    use_fastest_exact_products()
    if arguments.only_memory:
        print(json.dumps(memory(arguments.only_memory, arguments)))
        return
    settle_allocator()
    speed: dict[str, Any] = {}
    items = make_items(arguments.items, arguments.words, arguments.vocabulary)
    with ExitStack() as stack:
        vectors = {}
        for name in arguments.models.split(","):
            recipe, model = build(OURS[name], arguments.vocabulary)
            size = recipe.training["per_device_eval_batch_size"]
            vectors[name] = size, stack.enter_context(ItemVectors(model.eval(), items, progress=True))
        for history in map(int, arguments.histories.split(",")):
            speed[str(history)] = found = compare(history, items, vectors, arguments)
            rows = [[name, *(row[column] for column in COLUMNS)] for name, row in found.items()]
            print(tabulate(rows, [f"histories of {history:,}", *COLUMNS.values()], floatfmt=",.1f") + "\n", flush=True)
    held = [in_a_process(int(count), arguments) for count in arguments.catalogues.split(",") if count]
    if held:
        names = ["before", "titles", "computed", "scoring", "mapped", "vectors"]
        header = ["items", "before, MiB", "+ titles", "+ computing vectors", "+ scoring", "mapped", "vectors"]
        shown = [[f"{row['items']:,}", *(f"{row[name] / 2**20:,.1f}" for name in names)] for row in held]
        print(tabulate(shown, header, disable_numparse=True, stralign="right"))
    if arguments.json:
        result = {"speed": speed, "memory": held, "environment": environment()}
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
