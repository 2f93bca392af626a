"""The tokens of long texts that are read: ids and special tokens, cut to a length, whatever tokenizer they are from."""

from collections.abc import Callable, Sequence

import numpy as np

from longspan.errors import UserError


def truncated(
    contents: Sequence[np.ndarray], special: Sequence[np.ndarray], max_length: int, keep: str
) -> tuple[np.ndarray, int]:
    """Ids of a text or a pair between their special ids, and the number of ids that are left out.

    Args:
        contents: Ids of each text without special tokens.
        special: Special ids before, between and after them (`special_ids`).
        max_length: The most ids, special ones included; 0 for any number.
        keep: Which ids of a longer text are kept, "first" or "last". The longer text of a pair is cut first.

    Raises:
        UserError: `max_length` leaves no room next to the special tokens.
    """
    room = room_for(special, max_length)
    lengths = [len(content) for content in contents]
    kept = shares(lengths, room) if max_length else lengths
    pieces = [special[0]]
    for content, size, after in zip(contents, kept, special[1:], strict=True):
        pieces += [content[:size] if keep == "first" else content[len(content) - size :], after]
    return np.concatenate(pieces), sum(lengths) - sum(kept)


def room_for(special: Sequence[np.ndarray], max_length: int) -> int:
    """Number of tokens of one text or two that fit into `max_length` next to these special ones.

    Raises:
        UserError: Too few, where `max_length` is not 0.
    """
    count, texts = sum(map(len, special)), len(special) - 1
    if max_length and max_length - count < texts:
        raise UserError(
            f"data.max_length must be at least {count + texts}, as the tokenizer adds {count} special tokens to each "
            f"document, got {max_length}; raise it."
        )
    return max_length - count


def shares(lengths: list[int], room: int) -> list[int]:
    """Number of tokens to keep of one text, or of each of two, the longer of which is truncated first."""
    if sum(lengths) <= room:
        return lengths
    if len(lengths) == 1:
        return [room]
    shorter = min(*lengths, room // 2)
    return [shorter, room - shorter] if lengths[0] <= lengths[1] else [room - shorter, shorter]


def special_ids(encode: Callable[..., Sequence[int]], texts: int, name: str) -> list[np.ndarray]:
    """Special ids, int32, that a tokenizer adds before one text or two, between them and after the last.

    Args:
        encode: Encodes a text, or two, as ids; `add_special_tokens` says whether with special tokens.
        texts: Number of texts.
        name: Name of the tokenizer in messages.

    Raises:
        UserError: It changes texts when it adds special tokens.
    """
    samples = ["a", "b"][:texts]
    rest = list(encode(*samples, add_special_tokens=True))
    found = []
    for sample in samples:
        inner = list(encode(sample, add_special_tokens=False))
        starts = [i for i in range(len(rest) - len(inner) + 1) if rest[i : i + len(inner)] == inner]
        if not starts:
            raise UserError(f"the tokenizer {name!r} changes documents when it adds special tokens; use another.")
        found.append(np.array(rest[: starts[0]], np.int32))
        rest = rest[starts[0] + len(inner) :]
    return [*found, np.array(rest, np.int32)]
