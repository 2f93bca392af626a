"""A full disk under the cache of data sets is one sentence that names the cache."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pytest
import tokenizers
from datasets.arrow_writer import ArrowWriter

from longspan import UserError
from longspan.data.sources.files.full_disk import needing_room
from longspan.recipes import load as recipe
from longspan.tasks import load as task

SENTENCE = (
    r"expected room for the cache of data sets in '.*', got a full disk; free some, or set HF_DATASETS_CACHE to a"
)


def full(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(
    ("where", "what", "does"),
    [
        # What datasets looks at before it writes.
        (datasets.builder, "has_sufficient_disk_space", lambda *_, **__: False),
        # Rows, and tokens.
        (ArrowWriter, "write", full),
        (ArrowWriter, "write_batch", full),
        (ArrowWriter, "finalize", full),
        (Path, "mkdir", full),
    ],
)
def test_a_full_disk_is_one_sentence(
    where: Any, what: str, does: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    rows = [f"{what} {number},{'ab'[number % 2]}" for number in range(40)]
    (tmp_path / "a.csv").write_text("\n".join(["text,label", *rows]), encoding="utf-8")
    monkeypatch.setattr(where, what, does)
    with pytest.raises(UserError, match=SENTENCE):
        task("document_classification").prepare(recipe("classify", [f"data.path={tmp_path / 'a.csv'}"]))


def test_what_rust_says_of_a_full_disk() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("there is no device that is always full")
    with pytest.raises(UserError, match=SENTENCE), needing_room():
        tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, "a")).save("/dev/full")


def test_an_error_that_comes_from_itself_ends() -> None:
    """Known failure: a loop without an end where the cause of an error had come from that error."""
    error, cause = ValueError("a generator failed"), KeyError("text")
    cause.__context__ = error
    with pytest.raises(ValueError, match="a generator failed"), needing_room():
        raise error from cause


def test_other_errors_are_not_taken_for_it() -> None:
    for error in (OSError(errno.EACCES, "no"), ValueError("28"), UserError("expected one, got two.")):
        with pytest.raises(type(error), match=str(error)[:5].replace("[", r"\[")), needing_room():
            raise error
