"""A full disk under the cache of data sets, in one sentence: `needing_room`."""

import contextlib
import errno
from collections.abc import Iterator

from longspan.errors import UserError


@contextlib.contextmanager
def needing_room() -> Iterator[None]:
    """Raise UserError instead of whatever else says, during the `with` block, that the disk of the cache is full."""
    try:
        yield
    except Exception as error:
        if isinstance(error, UserError) or not any(map(_says_full, _causes(error))):
            raise
        from datasets import config

        raise UserError(
            f"expected room for the cache of data sets in {str(config.HF_DATASETS_CACHE)!r}, got a full disk; free "
            "some, or set HF_DATASETS_CACHE to a folder on another disk."
        ) from error


def _causes(error: BaseException | None) -> list[BaseException]:
    """Return an error and what it came from, each once: an error that is raised again can come from itself."""
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found


def _says_full(error: BaseException) -> bool:
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    # datasets, before it writes; tokenizers, whose errors have no class of their own.
    return any(words in str(error) for words in ("Not enough disk space", f"(os error {errno.ENOSPC})"))
