"""Both parts of a token classifier together: what each says of the words, the best scales, and the scores of each."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor

from longspan.models import LongspanForTokenClassification
from longspan.models.parts.linear_chain import COUNTS_ALONE, NETWORK_ALONE, path_losses
from longspan.models.parts.losses import IGNORED
from longspan.ops.crf import best_path
from longspan.results.parts import COUNTS, NAMES, NETWORK, Parts
from longspan.tasks.base.mixing import ratio_of_sums
from longspan.tasks.token_classification.labels import spans
from longspan.tasks.token_classification.scores import TokenScores

ALONE = {COUNTS: COUNTS_ALONE, NETWORK: NETWORK_ALONE}
"""The scales by which one part counts alone."""

#: Words that are labelled at once, and sentences that scales are fitted to.
_AT_ONCE, _ENOUGH = 2**15, 2000
#: Penalty that pulls the scales towards the wide part alone, in nats: sentences by the hundred outweigh it.
_PRIOR = 5.0


@dataclass(frozen=True)
class WordScores:
    """Scores of the two parts of a model for words, sentence after sentence.

    Attributes:
        parts: `(w, 2, l)` their scores.
        labels: `(w,)` numbers of the right labels, `IGNORED` where unknown.
        sizes: `(n,)` how many words each sentence has.
        tokens: `(w,)` the number of each word's first token among all tokens of the examples.
        length: Number of tokens.
    """

    parts: Tensor
    labels: Tensor
    sizes: Tensor
    tokens: Tensor
    length: int

    def rows(self, sentences: Sequence[int] | None = None) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield the words of similarly long sentences: their numbers in rows `(r, n)`, which of them are real, and
        lengths `(r,)`."""
        ends = self.sizes.cumsum(0)
        chosen = torch.arange(len(self.sizes)) if sentences is None else torch.tensor(sentences)
        chosen = chosen[self.sizes[chosen].argsort(stable=True)]
        start = 0
        while start < len(chosen):
            # The last of so many is the longest.
            count = max(1, _AT_ONCE // int(self.sizes[chosen[min(start + 1023, len(chosen) - 1)]]))
            batch = chosen[start : start + min(count, 1024)]
            lengths = self.sizes[batch]
            places = torch.arange(int(lengths[-1]))
            numbers = (ends[batch] - lengths).unsqueeze(1) + places
            real = places < lengths.unsqueeze(1)
            yield torch.where(real, numbers, 0), real, lengths
            start += len(batch)


def word_scores(model: LongspanForTokenClassification, examples: Dataset, parts: Tensor) -> WordScores:
    """Scores of the parts of a model for the words of examples.

    Args:
        model: The model, which knows where words begin.
        examples: Tokenised documents.
        parts: `(tokens, 2, l)` its outputs "parts" for them.
    """
    columns = examples.with_format("arrow")[:]
    ids, sentences, labels = (
        torch.from_numpy(columns[name].combine_chunks().flatten().to_numpy().astype(np.int64))
        for name in ("input_ids", "sentence_ids", "labels")
    )
    lengths = torch.from_numpy(columns["length"].to_numpy().astype(np.int64))
    example = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
    begins = model.begins.cpu()[ids]
    begins[(lengths.cumsum(0) - lengths)[lengths > 0]] = True
    tokens = begins.nonzero().squeeze(1)
    marks = torch.stack((example[tokens], sentences[tokens]))
    changed = torch.nn.functional.pad((marks[:, 1:] != marks[:, :-1]).any(0), (1, 0), value=True)
    starts = changed[: len(tokens)].nonzero().squeeze(1)
    sizes = torch.diff(starts, append=torch.tensor([len(tokens)]))
    return WordScores(parts[tokens], labels[tokens], sizes, tokens, len(ids))


@torch.no_grad()
def tags(model: LongspanForTokenClassification, words: WordScores, scales: Sequence[float] | Tensor) -> Tensor:
    """Return the numbers of the best labels, `(tokens,)`; those of tokens that do not begin words are 0."""
    found = torch.zeros(len(words.tokens), dtype=torch.long)
    scales = torch.as_tensor(scales, dtype=torch.float32)
    for numbers, real, lengths in words.rows():
        found[numbers[real]] = best_path(*_weighted(model, words, numbers, lengths, scales))[real]
    return torch.zeros(words.length, dtype=torch.long).index_copy(0, words.tokens, found)


def best_scales(model: LongspanForTokenClassification, words: WordScores) -> Tensor:
    """Factors of the scores of both parts, `(2,)` float32, at least 0.

    They have the highest likelihood on labelled sentences, at most `_ENOUGH` of them, evenly spread. A penalty pulls
    them towards the wide part alone, so that few sentences do not decide.
    """
    labelled = torch.zeros(len(words.sizes), dtype=torch.long).index_add(
        0, torch.repeat_interleave(torch.arange(len(words.sizes)), words.sizes), (words.labels != IGNORED).long()
    )
    there = labelled.nonzero().squeeze(1)
    alone = torch.tensor(COUNTS_ALONE)
    if not len(there):
        return alone
    chosen = there[torch.linspace(0, len(there) - 1, min(len(there), _ENOUGH)).long()].tolist()
    batches = list(words.rows(chosen))
    scales = torch.tensor([0.5, 0.5], requires_grad=True)
    optimizer = torch.optim.LBFGS([scales], max_iter=25, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        total = _PRIOR * (scales - alone).square().sum()
        for numbers, real, lengths in batches:
            gold = torch.where(real, words.labels[numbers], -1)
            scores, *chain = _weighted(model, words, numbers, lengths, scales)
            total = total + path_losses(scores, gold, *chain).sum()
        total.backward()
        return total

    with torch.enable_grad():
        optimizer.step(loss)
    # A part that speaks against itself has nothing to say.
    return scales.detach().clamp_min(0)


def _weighted(
    model: LongspanForTokenClassification, words: WordScores, numbers: Tensor, lengths: Tensor, scales: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Arguments of `longspan.ops.crf` for words in rows, by these scales."""
    parts = words.parts[numbers]
    scores = scales[0] * parts[:, :, 0] + scales[1] * parts[:, :, 1]
    return scores, lengths, *model.chained(scores, scales)


def parts_of(
    sentences: Sequence[tuple[int, Sequence[str]]], given: dict[str, Sequence[Sequence[str]]], *, plain: bool
) -> Parts:
    """Compare the labels that each part, and both together, give to sentences, by a bootstrap over documents.

    Args:
        sentences: Each sentence's document and right labels. If there is one document, sentences are drawn.
        given: By part, the labels of each sentence.
        plain: Whether each word has a label for itself: the score is accuracy, and otherwise span F1.
    """
    documents = np.unique([document for document, _ in sentences], return_inverse=True)[1]
    documents = documents if len(documents) and documents.max() else np.arange(len(sentences))
    ratio, sums = _accuracy if plain else _f1, []
    for name in NAMES:
        rows = [ratio(gold, found) for (_, gold), found in zip(sentences, given[name], strict=True)]
        sums.append(torch.zeros(int(documents.max()) + 1, 2, dtype=torch.float64))
        sums[-1].index_add_(0, torch.from_numpy(documents), torch.tensor(rows, dtype=torch.float64))
    return ratio_of_sums(TokenScores, "accuracy" if plain else "f1", sums)


def _accuracy(gold: Sequence[str], given: Sequence[str]) -> tuple[int, int]:
    return sum(right == found for right, found in zip(gold, given, strict=True)), len(gold)


def _f1(gold: Sequence[str], given: Sequence[str]) -> tuple[int, int]:
    there, found = set(spans(gold)), set(spans(given))
    return 2 * len(there & found), len(found) + len(there)
