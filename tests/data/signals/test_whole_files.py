"""Audio files are read whole, or refused: those that are cut off, joined, or have no length in their header."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from longspan.data.processor import Unreadable
from longspan.data.signals.containers import mp3_parts
from longspan.data.signals.decoding import samples, seconds_of

RATE = 16_000
#: A second of silence, of a tone, of noise, and so on: bit rates vary.
SECONDS = np.arange(4 * RATE) // RATE
SOUND = np.select(
    [SECONDS == 1, SECONDS == 2],
    [0.2 * np.sin(np.arange(4 * RATE) / 10), 0.2 * np.random.default_rng(0).standard_normal(4 * RATE)],
).astype(np.float32)
FORMATS: dict[str, dict[str, Any]] = {
    "wav": {"format": "WAV"},
    "wav of floats": {"format": "WAV", "subtype": "FLOAT"},
    "wavex": {"format": "WAVEX"},
    "rf64": {"format": "RF64"},
    "w64": {"format": "W64"},
    "aiff": {"format": "AIFF"},
    "au": {"format": "AU"},
    "caf": {"format": "CAF"},
    "flac": {"format": "FLAC"},
    "vorbis": {"format": "OGG"},
    "opus": {"format": "OGG", "subtype": "OPUS"},
    "mp3": {"format": "MP3", "bitrate_mode": "CONSTANT"},
    "mp3 of variable rate": {"format": "MP3", "bitrate_mode": "VARIABLE"},
}


def encoded(sound: np.ndarray = SOUND, rate: int = RATE, **settings: Any) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, sound, rate, **settings)
    return file.getvalue()


def recording(content: bytes | Path, start: float | None = None, end: float | None = None) -> dict[str, Any]:
    path, inside = (str(content), None) if isinstance(content, Path) else (None, content)
    return {"path": path, "bytes": inside, "samples": None, "rate": 0, "start": start, "end": end}


def read(content: bytes) -> np.ndarray:
    return samples(recording(content), RATE)


def close(found: np.ndarray, expected: np.ndarray, tolerance: float = 3e-7) -> None:
    """Decoders of MP3 round a little differently in each run."""
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance)


def without_information(content: bytes) -> bytes:
    """Return an MP3 file without its first frame, which says how long it is."""
    (part,) = mp3_parts(content)
    (rest,) = mp3_parts(content[part.start + 4 :])
    assert part.declared == rest.frames
    return content[part.start + 4 + rest.start :]


@pytest.mark.parametrize("name", FORMATS)
def test_whole_files_are_read_as_libsndfile_reads_them(name: str, tmp_path: Path) -> None:
    content = encoded(**FORMATS[name])
    (tmp_path / "file").write_bytes(content)
    expected, _ = soundfile.read(io.BytesIO(content), dtype="float32")
    assert len(expected) == len(SOUND)
    for one in (content, tmp_path / "file"):
        close(samples(recording(one), RATE), expected)
        assert seconds_of(recording(one)) == 4
        close(samples(recording(one, 0, 1), RATE), expected[:RATE])


@pytest.mark.parametrize("name", FORMATS)
def test_stretches_have_the_samples_of_the_whole(name: str) -> None:
    settings = dict(FORMATS[name], compression_level=0.9) if name.startswith("mp3") else FORMATS[name]
    content = encoded(**settings)
    whole = read(content)
    for first in (0.31, 1.17, 1.73, 2.2, 2.7, 2.75, 2.9, 2.99):
        found = samples(recording(content, first, first + 1), RATE)
        # Opus converges after a jump.
        close(found, whole[round(first * RATE) :][:RATE], 1e-3 if name == "opus" else 3e-7)


@pytest.mark.parametrize("share", [0.3, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("name", FORMATS)
def test_files_that_are_cut_off_are_refused(name: str, share: float, tmp_path: Path) -> None:
    content = encoded(**FORMATS[name])
    content = content[: int(len(content) * share)]
    (tmp_path / "file").write_bytes(content)
    for one in (content, tmp_path / "file"):
        with pytest.raises(Unreadable, match=r"^expected .*(cut off|damaged|lost sync|corrupt|malformed).*; "):
            samples(recording(one), RATE)


@pytest.mark.parametrize("name", ["flac", "vorbis", "opus", "mp3"])
def test_files_that_are_cut_at_the_end_of_a_frame_are_refused(name: str) -> None:
    content = encoded(**FORMATS[name])
    mark = {"flac": b"\xff\xf8", "mp3": b"\xff\xf3"}.get(name, b"OggS")
    content = content[: content.rindex(mark, 0, len(content) * 3 // 4)]
    with pytest.raises(Unreadable, match="expected"):
        read(content)


@pytest.mark.parametrize("name", [name for name in FORMATS if not name.startswith("mp3")])
def test_several_files_in_one_are_refused(name: str) -> None:
    content = encoded(**FORMATS[name])
    with pytest.raises(Unreadable, match="got several files, one after the other; restore it, or convert it anew"):
        read(content + content)


@pytest.mark.parametrize("mode", ["CONSTANT", "VARIABLE"])
@pytest.mark.parametrize("rate", [8_000, 16_000, 22_050, 44_100, 48_000])
@pytest.mark.parametrize("channels", [1, 2])
def test_mp3_without_information_about_its_length(mode: str, rate: int, channels: int) -> None:
    count = len(SOUND) * rate // RATE
    sound = np.interp(np.arange(count), np.arange(len(SOUND)) * rate / RATE, SOUND)
    content = encoded(np.stack([sound] * channels, 1), rate, format="MP3", bitrate_mode=mode, compression_level=0.3)
    expected = samples(recording(content), rate)
    bare = without_information(content)
    found = samples(recording(bare), rate)
    # Without it, the delay of the encoder and what fills the last frame are not known.
    assert count <= len(found) <= count + 3 * 1152
    some = slice(count // 2, count // 2 + 2000)
    distances = [np.abs(found[first:][some] - expected[some]).max() for first in range(len(found) - count + 1)]
    delay = int(np.argmin(distances))
    close(found[delay:][:count], expected)
    assert seconds_of(recording(bare)) == pytest.approx(len(found) / rate, abs=0.1)


def test_joined_mp3_files_are_read_whole(tmp_path: Path) -> None:
    one = encoded(format="MP3", bitrate_mode="VARIABLE")
    other = encoded(SOUND[::-1].copy(), format="MP3", bitrate_mode="CONSTANT")
    tag = b"ID3\x04\x00\x00\x00\x00\x00\x0a" + bytes(10)
    end = b"TAG" + bytes(125)
    both = np.concatenate([read(one), read(other)])
    for joined in (one + other, tag + one + end + tag + other + end):
        assert (read(joined) == both).all()
        (tmp_path / "both.mp3").write_bytes(joined)
        for first in (0.5, 2.25, 4.0, 6.75):
            found = samples(recording(tmp_path / "both.mp3", first, first + 1), RATE)
            close(found, both[round(first * RATE) :][:RATE])
        assert seconds_of(recording(tmp_path / "both.mp3")) == 8
    # The second one does not say how long it is.
    found = read(one + without_information(other))
    assert (found[: len(SOUND)] == both[: len(SOUND)]).all()
    assert len(SOUND) <= len(found) - len(SOUND) <= len(SOUND) + 3 * 576
    with pytest.raises(Unreadable, match="several files with different sample rates"):
        read(one + encoded(rate=2 * RATE, format="MP3"))
    with pytest.raises(Unreadable, match="a file that is cut off"):
        read(one + other[: len(other) // 2])


def test_wav_files_of_unknown_length_are_read_to_their_end() -> None:
    content = bytearray(encoded(format="WAV"))
    for size in (0xFFFFFFFF, 0x7FFFFFFF - 36):
        for place in (4, 40):
            content[place : place + 4] = size.to_bytes(4, "little")
        assert len(read(bytes(content))) == len(SOUND)


def test_bytes_after_the_samples_are_no_recording() -> None:
    for name in ("wav", "aiff", "flac", "mp3", "vorbis"):
        content = encoded(**FORMATS[name])
        assert len(read(content + b"TAG" + bytes(125))) == len(SOUND)


@pytest.mark.parametrize("name", ["wav", "flac", "mp3", "vorbis"])
def test_an_end_after_that_of_the_recording_is_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(encoded(**FORMATS[name]))
    with pytest.raises(Unreadable, match=r"^expected an end within .*, which is 4.00 seconds long, got 9; correct the"):
        samples(recording(path, 1, 9), RATE)
    # Times are often rounded.
    assert len(samples(recording(path, 1, 4.04), RATE)) == 3 * RATE
