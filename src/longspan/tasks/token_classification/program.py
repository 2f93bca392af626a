"""Labels of words by an exported program, without PyTorch: `Tagger`.

The program is the network alone. What it reads of words, and the best labels of sentences, are computed here in NumPy,
as `LongspanForTokenClassification` does: features of words, log-marginals of the wide part, and Viterbi paths.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from longspan.data.columns.kinds import Column
from longspan.data.sources.formats.rows import Row
from longspan.data.text.words import WordEncoder
from longspan.errors import UserError
from longspan.ops.crf_numpy import best_path, log_marginals
from longspan.ops.words import KNOWN, LETTERS, NOTHING, Numpy, code_points, feature_rows, spelling_rows, word_features
from longspan.tasks.base.answering import Answering, Answers, Runner, damaged, windows
from longspan.tasks.token_classification.options import TokenData
from longspan.tasks.token_classification.prediction import ANNOTATION_FORMATS, WordsPrediction, formats
from longspan.tasks.token_classification.reading import RowWords, Split, WordReader, columns

FILE = "words.safetensors"
#: Tokens that are read at once, and words whose features are looked up at once.
_TOKENS, _WORDS = 8192, 4096
#: Kinds of the types of arrays that are not of floating-point numbers.
_KINDS = {"begins": "b", "keys": "i", "spelling": "u", "lower": "i", "kinds": "u"}
#: No number of an array is as large, so that no sum of them is infinite.
_LARGEST = 1e9
#: Least log-probability that the network reads, and the score of a B- within a word, as in the model.
_LEAST, _NEVER = -8.0, -1e4


@dataclass(frozen=True)
class WordAnswers(Answers):
    """Labels of words.

    Attributes:
        plain: Whether labels are not of spans.
        crf: Whether a sentence's labels depend on each other.
        before, after: Special tokens around a text.
        unknown: The unknown token; -1 for none.
        features: Values of the further feature of words, numbered from 1, where the model reads one.
        reach, feature_reach: Words on either side whose spelling and further feature count in `word_rows`.
        rows: Rows of the table that `word_rows` are of; 0 for none.
    """

    plain: bool
    crf: bool
    before: list[int]
    after: list[int]
    unknown: int
    features: list[str]
    reach: int
    feature_reach: int
    rows: int

    def __post_init__(self) -> None:
        super().__post_init__()
        numbers = (self.reach, self.feature_reach, self.rows, *self.before, *self.after)
        if not all(0 <= number < 1 << 31 for number in numbers) or self.rows == 1 or max(numbers[:2]) > 1000:
            raise UserError("numbers of words, rows and tokens must be small, got others; restore them.")
        if not _takes_bounded_time(str(self.data.get("strip"))):
            raise UserError(
                "data.strip must be of at most 100 characters, and have a single one of * and +, or at most ten of ? "
                f"and |, got {str(self.data.get('strip'))[:100]!r}; use the run folder."
            )


class Tagger(Answering):
    """Labels of words; see `Answering`.

    Its arrays, in `words.safetensors`, are those of the model (`longspan.models.wide.chain.WideChain` and
    `longspan.models.parts.words.WordCharacters`) and the scores of transitions, starts and ends.
    """

    answers = WordAnswers
    data_config = TokenData
    reading = (
        *("text_column", "label_column", "feature_column", "sentences_column", "unit", "strip", "tokens", "encoding"),
        *("delimiter", "quoting", "header", "max_length", "classes", "files_per_class"),
    )
    prediction = WordsPrediction
    annotation_formats = ANNOTATION_FORMATS

    def __init__(self, answers: WordAnswers, folder: Path, tokenizer: Any) -> None:
        self._answers, self._tokenizer, self._folder = answers, tokenizer, folder
        self._encoder = WordEncoder(tokenizer, None if answers.unknown < 0 else answers.unknown)
        try:
            arrays = load_file(folder / FILE)
        # Types that NumPy does not have are missing keys.
        except (OSError, SafetensorError, ValueError, KeyError) as error:
            raise damaged(folder, f"no {FILE} that can be read") from error
        if problem := _problem(arrays, answers, tokenizer):
            raise damaged(folder, problem)
        self._arrays, self._wide = arrays, "keys" in arrays
        self._chain = tuple(arrays[name] for name in _chain_shapes("", len(answers.labels)))

    def inputs(self, data: TokenData) -> Sequence[Column]:
        return [column for column in columns(data, raw=True) if not column.target]

    def formats(self) -> Mapping[str, Callable[[Any], str]]:
        return formats()

    def windows(self, run: Any, rows: Iterable[Row]) -> Iterator[list[Row]]:
        return windows(rows, most=64)

    def predict(self, run: Any, rows: Iterable[Row]) -> Iterator[WordsPrediction]:
        limit = min([most for most in (run.data.max_length, *self._answers.limits.values()) if most], default=0)
        features = {value: number for number, value in enumerate(self._answers.features, 1)}
        reader = WordReader((self._answers.before, self._answers.after), limit, features)
        words_of = RowWords(self._tokenizer)
        for some in self.windows(run, rows):
            read: list[tuple[Row, Split | None, list[dict[str, Any]]]] = []
            for row in some:
                words = None if row.problem else words_of(row)
                pieces = []
                if words is not None:
                    facts = {"tokens": words.tokens, "sentences": words.sentences, "feature": row.values.get("feature")}
                    pieces = list(reader.token_windows(self._encoder, facts))
                read.append((row, words, pieces))
            found = self._labels([window for *_, pieces in read for window in pieces], run.compute)
            for row, words, pieces in read:
                if words is None:
                    yield WordsPrediction(row.where, row.problem or "no words")
                    continue
                labels, scores = zip(*chain.from_iterable(islice(found, len(pieces))), strict=True)
                given = row.values["tokens"]
                yield WordsPrediction.of(row.where, given, words, list(labels), scores, self._answers.plain)

    def _labels(self, windows: Sequence[Mapping[str, Any]], run: Runner) -> Iterator[list[tuple[str, float]]]:
        """Yield the labels of the words that are labelled in each window, with their probabilities."""
        start = 0
        while start < len(windows):
            end, size = start + 1, windows[start]["length"]
            while end < len(windows) and size + windows[end]["length"] <= _TOKENS:
                size += windows[end]["length"]
                end += 1
            yield from self._labels_at_once(windows[start:end], run)
            start = end

    def _labels_at_once(self, windows: Sequence[Mapping[str, Any]], run: Runner) -> Iterator[list[tuple[str, float]]]:
        answers = self._answers
        sizes = np.array([window["length"] for window in windows])
        ids, sentence, feature = (
            np.concatenate([np.array(window[name], np.int64) for window in windows])
            for name in ("input_ids", "sentence_ids", "feature_ids")
        )
        own = Numpy.owners(sizes)
        first = self._arrays["begins"][ids].astype(bool)
        first[sizes.cumsum() - sizes] = True
        tokens, word = np.flatnonzero(first), first.cumsum() - 1
        changed = np.ones(len(tokens), bool)
        changed[1:] = (np.diff(own[tokens]) != 0) | (np.diff(sentence[tokens]) != 0)
        row = changed.cumsum() - 1
        lengths = np.bincount(row)
        place = np.arange(len(row)) - (lengths.cumsum() - lengths)[row]

        def in_rows(scores: np.ndarray) -> np.ndarray:
            padded = np.zeros((len(lengths), lengths.max(), scores.shape[1]), np.float32)
            padded[row, place] = scores
            return padded

        inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
        counted = np.zeros((len(tokens), len(answers.labels)), np.float32)
        if self._wide:
            counted = self._counted(ids, word, lengths, feature[tokens] if answers.features else None)
            alone = tuple(self._arrays[name] for name in _chain_shapes("wide_", len(answers.labels)))
            inputs["log_marginals"] = np.zeros((len(ids), len(answers.labels)), np.float32)
            likely = log_marginals(in_rows(counted), lengths, *alone)[row, place]
            inputs["log_marginals"][tokens] = np.maximum(likely, _LEAST)
        if answers.features:
            inputs["feature_ids"] = feature
        if answers.rows:
            by_window = np.bincount(own[tokens])
            table = [spelling_rows(self._arrays["spelling"][ids], word, by_window, answers.reach, answers.rows, Numpy)]
            if answers.feature_reach:
                table += [feature_rows(feature[tokens], by_window, answers.feature_reach, answers.rows, Numpy)]
            inputs["word_rows"] = np.concatenate(table, 1)[word]
        scores = self._network(inputs, sizes, run)[tokens]
        if self._wide:
            scales = self._arrays["scales"]
            scores = scales[0] * counted + scales[1] * scores
        if not np.isfinite(scores).all():
            raise damaged(self._folder, "scores that are not finite")
        padded = in_rows(scores)
        tags = best_path(padded, lengths, *self._chain)[row, place]
        if answers.crf or self._wide:
            scores = log_marginals(padded, lengths, *self._chain)[row, place]
        kept = np.concatenate([np.array(window["kept"], bool) for window in windows])
        tags, scores = self._continued(tags[word[kept]], scores[word[kept]], ~first[kept])
        powers = np.exp(scores - scores.max(1, keepdims=True))
        shares = powers[np.arange(len(tags)), tags] / powers.sum(1)
        # Of numbers so large that their sums are not.
        if not np.isfinite(shares).all():
            raise damaged(self._folder, "scores that are not finite")
        found = iter(zip([answers.labels[tag] for tag in tags], shares.tolist(), strict=True))
        for window in windows:
            yield list(islice(found, sum(window["kept"])))

    def _counted(self, ids: np.ndarray, word: np.ndarray, lengths: np.ndarray, feature: Any) -> np.ndarray:
        """Scores of the wide part for each word."""
        spelled = self._arrays["spelling"][ids]
        there = spelled > 0
        codes, sizes = code_points(spelled[there], word[Numpy.owners(there.sum(1))], int(lengths.sum()), Numpy)
        lower, kinds, keys, weight = (self._arrays[name] for name in ("lower", "kinds", "keys", "weight"))
        hashes = word_features(codes, sizes, lengths, feature, lower, kinds, Numpy)
        found = []
        for start in range(0, len(hashes), _WORDS):
            some = hashes[start : start + _WORDS]
            places = np.searchsorted(keys, some).clip(max=len(keys) - 1)
            known = (keys[places] == some) & (some != NOTHING)
            found.append(np.where(known[:, :, None], weight[places], 0).sum(1, dtype=np.float32))
        return np.concatenate(found)

    def _network(self, inputs: Mapping[str, np.ndarray], sizes: np.ndarray, run: Runner) -> np.ndarray:
        """The network's scores of tokens, window after window, by batches of similarly long windows."""
        labels = len(self._answers.labels)
        found = np.empty((len(inputs["input_ids"]), labels), np.float32)
        starts, order = sizes.cumsum() - sizes, np.argsort(sizes, kind="stable")
        begin = 0
        while begin < len(order):
            # Padding of a short window costs as much as its tokens.
            most = max(16, int(1.25 * sizes[order[begin]]))
            end = begin + int(np.searchsorted(sizes[order[begin:]], most, side="right"))
            some = order[begin : max(begin + 1, end)]
            real = np.arange(sizes[some].max()) < sizes[some][:, None]
            at = np.where(real, starts[some][:, None] + np.arange(real.shape[1]), 0)
            batch = {name: values[at] for name, values in inputs.items()}
            for values in batch.values():
                values[~real] = 0
            scores = run(batch)
            if scores.shape != (*real.shape, labels):
                raise damaged(self._folder, f"a program with outputs of the shape {scores.shape}")
            found[at[real]] = scores[real]
            begin += len(some)
        return found

    def _continued(self, tags: np.ndarray, scores: np.ndarray, later: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Tags and scores of tokens; those that do not begin a word have its label, B- being I- there."""
        numbers = {name: number for number, name in enumerate(self._answers.labels)}
        inside = [numbers.get(f"I-{name[2:]}", own) if name[:2] == "B-" else own for name, own in numbers.items()]
        for own, other in enumerate(inside):
            if own != other:
                both = np.logaddexp(scores[:, other], scores[:, own])
                scores[:, other] = np.where(later, both, scores[:, other])
                scores[:, own] = np.where(later, both + np.float32(_NEVER), scores[:, own])
        return np.where(later, np.array(inside)[tags], tags), scores


def _problem(arrays: Mapping[str, np.ndarray], answers: WordAnswers, tokenizer: Any) -> str:
    """Reason why the arrays are not those that the answers and the tokenizer need; empty if they are."""
    labels, wide = len(answers.labels), "keys" in arrays
    tokens, size = (arrays[name].shape[0] if name in arrays and arrays[name].ndim else 0 for name in ("begins", "keys"))
    shapes = {"begins": (tokens,), **_chain_shapes("", labels)}
    if wide:
        shapes |= {"keys": (size,), "weight": (size, labels), "scales": (2,), "lower": (KNOWN,), "kinds": (KNOWN,)}
        shapes |= _chain_shapes("wide_", labels)
    if wide or answers.rows:
        shapes["spelling"] = (tokens, LETTERS)
    if {name: array.shape for name, array in arrays.items()} != shapes or not tokens or (wide and not size):
        return f"other arrays in {FILE}"
    if any(array.dtype.kind != _KINDS.get(name, "f") for name, array in arrays.items()):
        return f"arrays of other types in {FILE}"
    # Not of NaN either.
    if not all((np.abs(array) < _LARGEST).all() for array in arrays.values() if array.dtype.kind == "f"):
        return f"numbers in {FILE} that are not finite or too large"
    if wide and (arrays["keys"][1:] < arrays["keys"][:-1]).any():
        return f"keys in {FILE} that are not in order"
    more = max(*tokenizer.get_vocab().values(), answers.unknown, *answers.before, *answers.after, -1) >= tokens
    return f"more tokens than {FILE} has" if more else ""


def _takes_bounded_time(pattern: str) -> bool:
    """Whether a regular expression of others is sure not to take exponential time for a long word."""
    repeats, choices = (len(re.findall(marks, pattern)) for marks in ("[*+]", "[?|]"))
    return len(pattern) <= 100 and "{" not in pattern and (repeats, choices) in {(1, 0), *((0, n) for n in range(11))}


def _chain_shapes(prefix: str, labels: int) -> dict[str, tuple[int, ...]]:
    return {f"{prefix}transitions": (labels, labels), f"{prefix}start": (labels,), f"{prefix}end": (labels,)}


ANSWERING = Tagger
