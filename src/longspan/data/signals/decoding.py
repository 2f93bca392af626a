"""Reading recordings as samples: `samples`, whole, and `blocks`, piece by piece in constant memory."""

import io
import math
import mmap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from longspan.data.processor import Unreadable
from longspan.data.signals.containers import CutOff, check_whole, is_mp3, last_page_start, mp3_parts
from longspan.errors import UserError
from longspan.machine.imports import require

#: Seconds by which an end may be after that of its recording: ends are often rounded.
ROUNDING = 0.05
#: Samples before a jump that decoders of MP3 read for the right samples after it: those of 16 frames.
_LEAD = 16 * 1152
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
        name: Their name in messages.

    Raises:
        Unreadable: There are none, or some are not finite.
        UserError: A package is missing.
    """
    require("soxr", "resampling recordings")
    import soxr

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
    with closing(_opened(recording)) as file:
        return int(file.samplerate)


def seconds_of(recording: Mapping[str, Any]) -> float:
    """Return the length of a recording in a file, in seconds. Raises Unreadable if it cannot be read."""
    with closing(_opened(recording)) as file:
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
        stream: Stream to read, perhaps without an end.
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
    if file.exact and end > file.frames + ROUNDING * rate and recording["end"] is not None:
        file.close()
        raise Unreadable(
            f"expected an end within {path!r}, which is {file.frames / rate:.2f} seconds long, got "
            f"{recording['end']:g}; correct the times, or restore the file."
        )
    return rate, _decoded(file, path, first, end)


def _opened(recording: Mapping[str, Any]) -> "_Sound":
    soundfile = _soundfile()
    path, content = recording["path"], recording["bytes"]
    try:
        if content:
            return _sound(content, content)
        with Path(path).open("rb") as file:
            # Not closed here: what was raised may still refer to it.
            return _sound(path, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except CutOff as error:
        raise Unreadable(
            f"expected a whole recording in {path or 'the bytes'!r}, got {error}; restore it, or convert it anew."
        ) from None
    # Of an empty file, there is no view.
    except (soundfile.SoundFileError, OSError, TypeError, ValueError) as error:
        raise _damaged(path, error) from None


def _sound(source: str | bytes, content: bytes | mmap.mmap) -> "_Sound":
    """Return the sound of a file. Raises CutOff and what soundfile raises."""
    soundfile = _soundfile()
    view = memoryview(content)
    check_whole(view)
    parts = mp3_parts(view) if is_mp3(view) else []
    if len(parts) > 1 or any(not part.declared and not part.constant for part in parts):
        # libsndfile would read the first part, or as much as the first frame lets it expect.
        pieces = [(b"" if part.declared else part.information) + bytes(view[part.start : part.end]) for part in parts]
        files = [soundfile.SoundFile(io.BytesIO(piece)) for piece in pieces]
        if len({file.samplerate for file in files}) > 1:
            raise CutOff("several files with different sample rates, one after the other")
        return _Sound(files)
    # The length of an MP3 file without information is an estimate, and that of some streams is unknown.
    file = soundfile.SoundFile(io.BytesIO(source) if isinstance(source, bytes) else source)
    exact = file.frames < 1 << 62 and all(part.frames == part.declared for part in parts)
    return _Sound([file], exact, last_page_start(view))


class _Sound:
    """The sound in one or several files of soundfile, one after the other, as one of these.

    Args:
        files: They have one sample rate.
        exact: Whether they have as many frames as they say.
        last_page: The frame that the last page of an Ogg file begins with.
    """

    def __init__(self, files: Sequence[Any], exact: bool = True, last_page: int = 0) -> None:
        self.files, self.exact, self.last_page = list(files), exact, last_page
        self.samplerate, self.frames = files[0].samplerate, sum(file.frames for file in files)
        self._left, self._place = list(files), 0
        for file in self.files:
            # Else soundfile seeks after each read, and decoders of MP3 start anew within a frame, with other samples.
            file.seekable = lambda: False

    def close(self) -> None:
        for file in self.files:
            file.close()

    def seek(self, frame: int) -> None:
        """Continue from a frame on, as the first call."""
        while len(self._left) > 1 and frame >= self._left[0].frames:
            frame -= self._left.pop(0).frames
        file, before = self._left[0], 0
        if file.format == "MP3":
            before = min(frame, _LEAD)
        elif file.subtype == "VORBIS" and frame > self.last_page:
            # A jump into the last page leads to other samples, as its end is cut.
            before = frame - max(0, self.last_page - 1)
        file.seek(frame - before)
        file.read(before)
        self._place = frame

    def read(self, count: int) -> np.ndarray:
        """Return the next samples (n, channels), at most this number; none at the end."""
        while True:
            # Not beyond the end, where decoders would take other bytes for samples.
            rest = min(count, self._left[0].frames - self._place)
            piece: np.ndarray = self._left[0].read(rest, dtype="float32", always_2d=True)
            self._place += len(piece)
            if len(piece) or len(self._left) == 1:
                return piece
            self._left.pop(0)
            self._place = 0


def _decoded(file: "_Sound", path: str | None, first: int, end: float) -> Iterator[np.ndarray]:
    soundfile = _soundfile()
    with closing(file):
        try:
            if first:
                file.seek(first)
            place = first
            while place < end:
                piece = file.read(int(min(BLOCK, end - place)))
                if not len(piece):
                    break
                place += len(piece)
                # The mean of the channels.
                yield np.ascontiguousarray(piece.mean(1), np.float32)
            if file.exact and place < min(end, file.frames):
                raise Unreadable(
                    f"expected {file.frames / file.samplerate:.2f} seconds in {path or 'the bytes'!r}, as it says, got "
                    f"{place / file.samplerate:.2f}; restore it, or convert it anew."
                )
        except (soundfile.SoundFileError, OSError) as error:
            raise _damaged(path, error) from None


def _damaged(path: str | None, error: Exception) -> Unreadable:
    if path is not None and not Path(path).exists():
        return Unreadable(f"expected a recording in {path!r}, got no such file; restore it.")
    # Of damaged frames, libsndfile says nothing.
    reason = str(error).rpartition(": ")[2].rstrip(".") or "damaged or cut off"
    return Unreadable(
        f"expected a recording such as WAV, FLAC, OGG or MP3 in {path or 'the bytes'!r}, got something else "
        f"({reason}); restore it."
    )


def _soundfile() -> Any:
    require("soundfile", "reading recordings")
    import soundfile

    return soundfile
