"""The documents of a recipe with their labels, checked: what models and baselines learn from."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path

from datasets import Dataset

from longspan.data.columns.values import shown
from longspan.data.sources.files.opening import packed_suffix
from longspan.data.sources.formats.schema import schema_of
from longspan.data.sources.formats.tables import FORMATS, column_names
from longspan.data.sources.loading import Splits, load
from longspan.errors import UserError
from longspan.machine.printing import note
from longspan.tasks.token_classification.labels import OUTSIDE, Scheme, hyphenated, label_names, scheme_of, to_iob2
from longspan.tasks.token_classification.options import TokenData
from longspan.tasks.token_classification.reading import columns


@dataclass(frozen=True)
class Documents:
    """Documents with labels.

    Attributes:
        loaded: Their splits, with the labels as they were read.
        scheme: That of the labels of the training split, which the others keep to.
        names: The labels that a model is to give.
    """

    loaded: Splits
    scheme: Scheme
    names: list[str]


def read_documents(data: TokenData) -> Documents:
    """Read and split documents.

    Raises:
        UserError: See `longspan.data.sources.loading.load`; or labels are of no scheme, do not keep to it, or are all
            the same.
    """
    loaded = load(data, columns(data))
    check_sentences(loaded.splits["train"], data, data.train or data.path)
    scheme = scheme_of(_sentences(loaded.splits["train"]))
    _note_scheme(loaded, scheme)
    loaded = checked(loaded, scheme, data)
    labels = (to_iob2(labels, scheme).labels for labels in _sentences(loaded.splits["train"]))
    names = label_names(labels, scheme)
    if len(names) < 2:
        raise UserError(
            f"expected at least two labels in the training data, got only {shown(names[0])}; check data.label_column."
        )
    return Documents(loaded, scheme, names)


#: Rows of one word each that are taken for words of sentences, not for documents.
_ONE_WORD_ROWS = 3


def check_sentences(rows: Dataset, data: TokenData, source: str = "") -> None:
    """Raise UserError for data with a word in each row: read alone, words have no context.

    `source` is where the rows come from, if it is known: a table whose further columns may name sentences.
    """
    if len(rows) < _ONE_WORD_ROWS or any(len(words) != 1 for words in rows["tokens"][:]):
        return
    path = Path(source)
    names = (
        column_names(path, schema_of(columns(data), data)) if packed_suffix(path) in FORMATS and path.is_file() else []
    )
    others = [name for name in names if name not in (data.text_column, data.label_column, data.feature_column)]
    column = next((name for name in others if "sent" in name.lower()), "SENTENCE")
    one = [data.text_column, *([data.feature_column] if data.feature_column else []), data.label_column]
    raise UserError(
        f"expected the words of a sentence in each row, got one word in each of {len(rows):,} rows (first: "
        f"{shown(rows['tokens'][0][0])} at {rows['where'][0]}); join the rows of each sentence, with pandas by "
        f"table.groupby(table[{column!r}].ffill(), sort=False)[{one}].agg(list)."
    )


def _note_scheme(loaded: Splits, scheme: Scheme) -> None:
    """Say how labels are read that are written in another way than models give them."""
    labels = (label for sentence in _sentences(loaded.splits["train"]) for label in sentence if label != OUTSIDE)
    first = next(labels, "")
    if scheme == "IO":
        note(f"labels such as {shown(first)} mark spans: words next to each other with the same one are one span")
    elif scheme != "plain" and first and hyphenated(first) != first:
        note(f"labels such as {shown(first)} are read as {shown(hyphenated(first))}")


def checked(loaded: Splits, scheme: Scheme, data: TokenData) -> Splits:
    """Return the rows whose labels keep to the scheme.

    Raises:
        UserError: Some do not, and are neither repaired nor left out.
    """
    splits, skipped = dict(loaded.splits), Counter(loaded.skipped)
    if data.mend_labels or scheme == "plain":
        return loaded
    for name, rows in loaded.splits.items():
        good, first, broken = [], "", 0
        for number, row in enumerate(rows.select_columns(["labels", "sentences", "where"])):
            start = 0
            own = 0
            for labels in by_sentence(row["labels"], row["sentences"]):
                wrong = to_iob2(labels, scheme).broken
                if wrong and not first:
                    word = start + wrong[0]
                    first = f"{shown(row['labels'][word])} of word {word + 1} at {row['where']}"
                own += len(wrong)
                start += len(labels)
            broken += own
            good += [] if own else [number]
        if not broken:
            continue
        if not data.skip_bad_rows:
            what = "an I- that begins a span" if scheme == "IOB2" else "labels in another order"
            raise UserError(
                f"expected labels in {scheme}, got {what} {broken} times in the {name} data (first: {first}); correct "
                "them, set data.mend_labels=true to have such spans begin there, or data.skip_bad_rows=true to drop "
                "and count these rows."
            )
        if not good:
            raise UserError(f"expected labels in {scheme} in the {name} data, got none; check data.label_column.")
        skipped[f"labels not in {scheme}"] += len(rows) - len(good)
        splits[name] = rows.select(good)
    return replace(loaded, splits=type(loaded.splits)(splits), skipped=dict(skipped))


def by_sentence(values: Sequence[str], sizes: Sequence[int] | None) -> list[list[str]]:
    """Return the values of each sentence, given how many each has; None is one sentence."""
    ends = [0, *accumulate(sizes or [len(values)])]
    return [list(values[start:end]) for start, end in pairwise(ends) if start < end]


def _sentences(rows: Dataset) -> Iterator[list[str]]:
    """Yield the labels of each sentence."""
    for labels, sizes in zip(rows["labels"][:], rows["sentences"][:], strict=True):
        yield from by_sentence(labels, sizes)
