"""
Put a model behind HTTP
=======================

``longspan serve RUN`` answers requests and shows a page. Here a test client sends the requests, without a server:
texts, a file, and a correction.
"""

# %%
# A model of letters
# ------------------
# Letters of an aunt and of a bank, generated.

import random
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import matplotlib.pyplot as plt
from fastapi.testclient import TestClient

import longspan
from longspan.serving.app import app_of

choose = random.Random(0)
WORDS = {
    "aunt": ["cake", "garden", "cat", "tea", "visit", "sunday", "holiday", "knitting"],
    "bank": ["account", "statement", "interest", "loan", "balance", "transfer", "fee", "card"],
}
COMMON = ["dear", "thank", "you", "for", "the", "and", "is", "ready", "please", "see", "next", "week"]


def letter(kind: str) -> str:
    """Words of one kind among those that all letters have."""
    return " ".join(choose.choices(WORDS[kind], k=4) + choose.choices(COMMON, k=12)) + "."


rows = [(letter(kind), kind) for kind in WORDS for _ in range(80)]
folder = tempfile.TemporaryDirectory()
run = longspan.train(
    "classify",
    data={"text": [text for text, _ in rows], "label": [kind for _, kind in rows]},
    run=Path(folder.name, "letters"),
    dim=16,
    depth=1,
    max_minutes=0,
    min_steps=0,
    num_train_epochs=1,
    progress=False,
)

# %%
# Requests
# --------
# ``app_of`` makes the application that ``longspan serve`` runs. A test client calls it in this process.

client = TestClient(app_of(run.loaded, hosts=())).__enter__()
answer = client.post("/predict", json={"inputs": ["Tea in the garden on sunday?", ""]})
for one in answer.json()["predictions"]:
    print(one)

# %%
# A file is the body of a request, or an input with its bytes in Base64.

page = b"<html><title>tea</title><p>Your <b>account</b> statement is ready.</p></html>"
print(client.post("/predict/file", params={"name": "letter.html"}, content=page).json()["predictions"][0]["label"])

# %%
# What cannot be answered gets one sentence.

for body in ({"inputs": [7]}, {"inputs": []}, {"texts": ["tea"]}, {"inputs": ["tea"] * 100}):
    refused = client.post("/predict", json=body)
    print(refused.status_code, refused.json()["detail"])

# %%
# A correction is a row that ``data.corrections`` reads in the next training run.

client.post("/corrections", json={"input": "Dear aunt, the bank is closed.", "label": "aunt"})
print(Path(folder.name, "letters-corrections.jsonl").read_text(encoding="utf-8"))

# %%
# Requests that wait are answered together
# ----------------------------------------
# The model runs in one thread. Forty clients send a letter each; then one client sends forty letters one by one. The
# requests of the forty are joined into batches.

letters = [letter(choose.choice([*WORDS])) for _ in range(40)]


def seconds(text: str) -> float:
    """Time until the answer of a request."""
    began = time.perf_counter()
    client.post("/predict", json={"inputs": [text]})
    return time.perf_counter() - began


began = time.perf_counter()
alone = [seconds(text) for text in letters]
in_turn = time.perf_counter() - began
began = time.perf_counter()
with ThreadPoolExecutor(40) as pool:
    together = list(pool.map(seconds, letters))
at_once = time.perf_counter() - began
client.__exit__(None, None, None)

figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
left.bar(["one by one", "at once"], [40 / in_turn, 40 / at_once], color="tab:blue")
left.set(ylabel="requests per second", title="Forty requests")
right.boxplot([[1000 * one for one in alone], [1000 * one for one in together]], tick_labels=["one by one", "at once"])
right.set(ylabel="milliseconds until the answer", ylim=(0, None), title="Each of them")
plt.show()

# %%
# Take away: a run is a server with one command, for programs and for people. :doc:`/guides/serving` has its limits and
# how it is kept safe.
