"""Reading recordings as samples: `samples`, whole, and `blocks`, piece by piece in constant memory."""

import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from longspan.data.processor import Unreadable
from longspan.errors import UserError

#: Samples decoded at a time.
BLOCK = 1 << 16


def samples(recording: Mapping[str, Any], rate: int) -> np.ndarray:
    """Return the samples of a recording, mono and resampled, (n,) float32 from -1 to 1.

    Args:
        recording: A value of the column `longspan.data.columns.media.Recording`.
        rate: The wanted number of samples per second.

    Raises:
        Unreadable: The file is missing or damaged, or the recording is empty or not finite.
        UserError: A package is missing.
    """
    return np.concatenate(list(blocks(recording, rate)))


def blocks(recording: Mapping[str, Any], rate: int) -> Iterator[np.ndarray]:
    """Yield what `samples` returns in pieces, as they are decoded. Raises what `samples` raises."""
    if recording["samples"] is not None:
        own, name = recording["rate"] or rate, "the array"
        pieces: Iterator[np.ndarray] = iter([np.asarray(recording["samples"], np.float32)])
    else:
        own, pieces = _of_file(recording)
        name = recording["path"] or "the file"
    yield from resampled(pieces, own, rate, name)


def resampled(pieces: Iterable[np.ndarray], own: int, rate: int, name: str) -> Iterator[np.ndarray]:
    """Yield samples that come in pieces, with another rate.

    Args:
        pieces: (n,) float32 each.
        own: Their samples per second.
        rate: The wanted number of samples per second.
        name: What messages call them.

    Raises:
        Unreadable: There are none, or some are not finite.
        UserError: A package is missing.
    """
    soxr = _soxr()
    resampler = None if own == rate else soxr.ResampleStream(own, rate, 1, dtype="float32", quality="HQ")
    count = 0
    for piece in pieces:
        if not np.isfinite(piece).all():
            raise Unreadable(f"expected finite samples in {name!r}, got others; restore it.")
        made = piece if resampler is None else resampler.resample_chunk(piece)
        count += len(made)
        yield made
    if resampler is not None:
        rest = resampler.resample_chunk(np.zeros(0, np.float32), last=True)
        count += len(rest)
        yield rest
    if not count:
        raise Unreadable(f"expected samples in {name!r}, got none; correct the times, or leave the recording out.")


def rate_of(recording: Mapping[str, Any]) -> int:
    """Return the sample rate of a recording; 0 if it has none. Raises Unreadable if its file cannot be read."""
    if recording["samples"] is not None:
        return int(recording["rate"] or 0)
    with _opened(recording) as file:
        return int(file.samplerate)


def seconds_of(recording: Mapping[str, Any]) -> float:
    """Return the length of a recording in a file, in seconds. Raises Unreadable if it cannot be read."""
    with _opened(recording) as file:
        end = file.frames / file.samplerate
    return min(end, math.inf if recording["end"] is None else recording["end"]) - (recording["start"] or 0.0)


def raw_input(paths: Sequence[Path | str], stdin: BinaryIO | None) -> BinaryIO:
    """Return standard input, which raw PCM comes from. Raises UserError if paths name something else."""
    if list(map(str, paths)) != ["-"] or stdin is None:
        raise UserError(f"expected '-', standard input, with pcm_rate, got {paths[0]!r}; give only '-'.")
    return stdin


def pcm(stream: BinaryIO, seconds: float, rate: int) -> Iterator[np.ndarray]:
    """Yield stretches of raw 16-bit little-endian mono PCM as they come, (n,) float32; the last may be shorter.

    Args:
        stream: What is read, perhaps without an end.
        seconds: The length of a stretch.
        rate: Samples per second.
    """
    size = 2 * max(1, round(seconds * rate))
    kept = b""
    while found := stream.read(size - len(kept)):
        kept += found
        if len(kept) == size:
            yield _of_pcm(kept)
            kept = b""
    if len(kept) > 1:
        yield _of_pcm(kept[: len(kept) // 2 * 2])


def _of_pcm(content: bytes) -> np.ndarray:
    return np.frombuffer(content, "<i2").astype(np.float32) / 32768


def _of_file(recording: Mapping[str, Any]) -> tuple[int, Iterator[np.ndarray]]:
    """Return the sample rate of a file and its samples, those between start and end."""
    path, file = recording["path"], _opened(recording)
    rate = file.samplerate
    first = round((recording["start"] or 0.0) * rate)
    end = math.inf if recording["end"] is None else round(recording["end"] * rate)
    if first >= file.frames > 0:
        file.close()
        raise Unreadable(
            f"expected a start before the end of {path!r}, which is {file.frames / rate:.2f} seconds long, got "
            f"{recording['start']:g}; correct the times."
        )
    return rate, _decoded(file, path, first, end)


def _opened(recording: Mapping[str, Any]) -> Any:
    soundfile = _soundfile()
    path, content = recording["path"], recording["bytes"]
    try:
        return soundfile.SoundFile(io.BytesIO(content) if content else path)
    except (soundfile.SoundFileError, OSError, TypeError) as error:
        raise _damaged(path, error) from None


def _decoded(file: Any, path: str | None, first: int, end: float) -> Iterator[np.ndarray]:
    soundfile = _soundfile()
    with file:
        try:
            if first:
                file.seek(first)
            left = end - first
            while left > 0:
                piece = file.read(int(min(BLOCK, left)), dtype="float32", always_2d=True)
                if not len(piece):
                    return
                left -= len(piece)
                yield _mono(piece)
        except (soundfile.SoundFileError, OSError) as error:
            raise _damaged(path, error) from None


def _mono(values: np.ndarray) -> np.ndarray:
    """Return the mean of the channels, (n,), of samples (n, channels)."""
    return np.ascontiguousarray(values.mean(1), np.float32)


def _damaged(path: str | None, error: Exception) -> Unreadable:
    if path is not None and not Path(path).exists():
        return Unreadable(f"expected a recording in {path!r}, got no such file; restore it.")
    reason = str(error).rpartition(": ")[2].rstrip(".") or type(error).__name__
    return Unreadable(
        f"expected a recording such as WAV, FLAC, OGG or MP3 in {path or 'the bytes'!r}, got something else "
        f"({reason}); restore it."
    )


def _soundfile() -> Any:
    try:
        import soundfile
    except ModuleNotFoundError as error:
        raise _missing(error) from None
    return soundfile


def _soxr() -> Any:
    try:
        import soxr
    except ModuleNotFoundError as error:
        raise _missing(error) from None
    return soxr


def _missing(error: ModuleNotFoundError) -> UserError:
    return UserError(
        f"recordings need the package {error.name!r}, which is not installed; run `pip install 'longspan[audio]'`."
    )
