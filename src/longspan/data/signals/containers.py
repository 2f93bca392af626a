"""Audio files that end early, or are several: decoders read less of them. `check_whole` and `mp3_parts`.

Only the headers of their parts are read.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass

#: From this size on, the data of a RIFF file have the length of none: writers to pipes do not know it.
_UNKNOWN = 0x7FFF0000


class CutOff(ValueError):
    """A file that ends before its recording does, or that has something else after it; the message says which."""


def check_whole(content: bytes | memoryview) -> None:
    """Raise CutOff if a file of a known format ends early, or if another one follows it. MP3 files have `mp3_parts`."""
    view, start = memoryview(content), bytes(content[:16])
    if start[:4] in (b"RIFF", b"RF64"):
        _check_chunks(view, start[:4], "<4sI", 12)
    elif start[:4] == b"FORM":
        _check_chunks(view, start[:4], ">4sI", 12)
    elif start == _W64:
        _check_w64(view)
    elif start[:4] == b".snd":
        offset, size = struct.unpack_from(">II", view, 4) if len(view) >= 12 else (0, 0)
        if size != 0xFFFFFFFF:
            _check_end(view, offset + size, start[:4])
    elif start[:4] == b"caff":
        _check_chunks(view, start[:4], ">4sq", 8)
    elif start[:4] == b"OggS":
        _check_pages(view)
    elif start[:4] == b"fLaC" and _later_flac(content):
        raise CutOff("several files, one after the other")


def _check_end(view: memoryview, end: int, magic: bytes, frame: int = 1) -> None:
    """Raise CutOff unless a file reaches an end, up to a part of a frame of samples, and no other file begins there."""
    if len(view) <= end - frame:
        raise CutOff(f"a file that is cut off: {len(view):,} of {end:,} bytes")
    if bytes(view[end : end + len(magic)]) == magic or bytes(view[end + 1 : end + 1 + len(magic)]) == magic:
        raise CutOff("several files, one after the other")


def _check_chunks(view: memoryview, magic: bytes, form: str, place: int) -> None:
    """Check the chunk of samples of a file of chunks: those of WAV, RF64, AIFF and CAF."""
    size_of_header, large, frame = struct.calcsize(form), 0, 1
    end = 0
    while place + size_of_header <= len(view):
        name, size = struct.unpack_from(form, view, place)
        place += size_of_header
        if not any(name):
            return
        if name == b"ds64" and place + 16 <= len(view):
            large = struct.unpack_from("<QQ", view, place)[1]
        elif name == b"fmt " and place + 14 <= len(view):
            frame = max(1, struct.unpack_from("<H", view, place + 12)[0])
        if name == b"data" and magic == b"RF64":
            size = large
        if name in (b"data", b"SSND"):
            if size < 0 or (magic == b"RIFF" and (size == 0 or (size >= _UNKNOWN and place + size > len(view)))):
                return
            _check_end(view, place + size, magic, frame)
        place += size + (size % 2 if magic != b"caff" else 0)
        end = place
    if end and end < len(view):
        _check_end(view, end, magic)


_W64 = b"riff\x2e\x91\xcf\x11\xa5\xd6\x28\xdb\x04\xc1\x00\x00"


def _check_w64(view: memoryview) -> None:
    place = 40
    while place + 24 <= len(view):
        size = int.from_bytes(view[place + 16 : place + 24], "little")
        if view[place : place + 4] == b"data":
            _check_end(view, place + size, _W64)
            return
        place += max(24, (size + 7) // 8 * 8)


def _check_pages(view: memoryview) -> None:
    """Check the pages of an Ogg file: the last one of each stream says so, and all streams begin before others end."""
    place, begun, ended = 0, 0, 0
    while bytes(view[place : place + 4]) == b"OggS" and place + 27 <= len(view):
        flags, count = view[place + 5], view[place + 26]
        if flags & 2 and ended:
            raise CutOff("several files, one after the other")
        begun, ended = begun + (flags >> 1 & 1), ended + (flags >> 2 & 1)
        place += 27 + count + sum(view[place + 27 : place + 27 + count])
    if ended < begun or place > len(view):
        raise CutOff("a file that is cut off: its last page is missing")


def last_page_start(content: bytes | memoryview) -> int:
    """Return the sample that the last page of an Ogg file begins with, as the page before it says."""
    # Pages have at most 65,307 bytes.
    tail = bytes(content[-(1 << 18) :])
    page = tail.rfind(b"OggS", 0, max(0, tail.rfind(b"OggS")))
    return int.from_bytes(tail[page + 6 : page + 14], "little", signed=True) if page >= 0 else 0


def _later_flac(content: bytes | memoryview) -> bool:
    """Say whether a FLAC file begins after the first one: its mark, and the size of the block that always follows."""
    view = memoryview(content)
    step = 1 << 24
    marks = (b"fLaC\x00\x00\x00\x22", b"fLaC\x80\x00\x00\x22")
    return any(mark in bytes(view[place : place + step + 8]) for place in range(4, len(view), step) for mark in marks)


# MP3

_BITRATES = {
    3: (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    2: (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}
_RATES = {3: (44100, 48000, 32000), 2: (22050, 24000, 16000), 0: (11025, 12000, 8000)}


@dataclass
class Part:
    """A stretch of an MP3 file that was a file of its own.

    Attributes:
        start: Byte of its first frame.
        end: Byte after its last one.
        header: The 4 bytes that its first frame begins with.
        frames: Number of frames with samples.
        declared: Their number by the Xing header that it begins with; None without one.
        constant: Whether all frames have one bit rate.
    """

    start: int
    end: int
    header: bytes
    frames: int = 0
    declared: int | None = None
    constant: bool = True

    @property
    def information(self) -> bytes:
        """A frame without samples that says how many frames follow: a Xing header, which a decoder trusts."""
        # With the largest bit rate, without a checksum.
        header = bytes([self.header[0], self.header[1] | 1, 0xE0 | (self.header[2] & 0x0C), self.header[3]])
        size, offset = _frame_size(header), _xing_offset(header)
        body = b"Xing" + struct.pack(">III", 3, self.frames, size + self.end - self.start)
        return (header + bytes(offset - 4) + body).ljust(size, b"\0")


def is_mp3(content: bytes | memoryview) -> bool:
    """Say whether a file begins as MP3 files do."""
    return bytes(content[:3]) == b"ID3" or bool(_frame_size(bytes(content[:4])))


def mp3_parts(content: bytes | memoryview) -> list[Part]:
    """Return the parts of an MP3 file, without those of a frame or two that encoders leave after the last one.

    Raises:
        CutOff: A part lacks frames, or the last frame is incomplete.
    """
    view = memoryview(content)
    parts: list[Part] = []
    for place, header, size in _frames(view):
        declared = _declared(view, place, header)
        last = parts[-1] if parts else None
        if last is None or declared or last.frames == last.declared or _rate(header) != _rate(last.header):
            last = Part(place, place, header, -1 if declared else 0, declared)
            parts.append(last)
        # The bit rate of information about the file may be another.
        if last.frames == 0:
            last.header = header
        last.constant = last.constant and (last.frames < 0 or header[2] >> 4 == last.header[2] >> 4)
        last.frames += 1
        last.end = place + size
    for part in parts:
        # Some encoders count the frame of information.
        if part.declared and part.frames < part.declared - 1:
            raise CutOff(f"a file that is cut off: {part.frames:,} of {part.declared:,} frames")
    if parts and parts[-1].end > len(view):
        raise CutOff("a file that is cut off in the middle of a frame")
    return [part for part in parts if part.declared or part.frames > 2 or len(parts) == 1]


def _rate(header: bytes) -> int:
    """Return the sample rate of a frame."""
    return _RATES[header[1] >> 3 & 3][header[2] >> 2 & 3]


def _frames(view: memoryview) -> Iterator[tuple[int, bytes, int]]:
    """Yield place, header and size of each frame. What is between them, such as tags, is left out."""
    place, total = 0, len(view)
    while place + 4 <= total:
        header = bytes(view[place : place + 4])
        size = _frame_size(header)
        if size:
            yield place, header, size
            place += size
        elif header[:3] == b"ID3" and place + 10 <= total:
            a, b, c, d = view[place + 6 : place + 10]
            place += 10 + (a << 21 | b << 14 | c << 7 | d)
        elif header[:3] == b"TAG" or bytes(view[place : place + 8]) == b"APETAGEX":
            # Names and the like, at the end.
            place = _next_frame(view, place + 4)
        else:
            place = _next_frame(view, place + 1)


def _next_frame(view: memoryview, place: int) -> int:
    """Return where two frames follow each other, from a place on; the end if nowhere."""
    total, step = len(view), 1 << 16
    while place + 4 <= total:
        block = bytes(view[place : place + step + 4])
        found = block.find(b"\xff")
        while 0 <= found < step:
            size = _frame_size(block[found : found + 4])
            after = place + found + size
            if size and after + 4 <= total and _frame_size(bytes(view[after : after + 4])):
                return place + found
            found = block.find(b"\xff", found + 1)
        place += step
    return total


def _frame_size(header: bytes) -> int:
    """Return the bytes of a frame of layer III; 0 if none begins so."""
    if len(header) < 4 or header[0] != 0xFF or header[1] & 0xE6 != 0xE2:
        return 0
    version, bitrate, rate = header[1] >> 3 & 3, header[2] >> 4, header[2] >> 2 & 3
    if version == 1 or not 0 < bitrate < 15 or rate == 3:
        return 0
    rates = _BITRATES[3 if version == 3 else 2]
    return (144 if version == 3 else 72) * 1000 * rates[bitrate] // _RATES[version][rate] + (header[2] >> 1 & 1)


def _xing_offset(header: bytes) -> int:
    """Return where the information about a file is in its first frame: after the side information."""
    mono = header[3] >> 6 == 3
    return 4 + ((17 if mono else 32) if header[1] >> 3 & 3 == 3 else (9 if mono else 17))


def _declared(view: memoryview, place: int, header: bytes) -> int | None:
    """Number of frames after a frame of information; None, or 0, if it is no such frame, or does not say."""
    offset = place + _xing_offset(header)
    mark = bytes(view[offset : offset + 4])
    if mark in (b"Xing", b"Info") and len(view) >= offset + 12 and view[offset + 7] & 1:
        return int.from_bytes(view[offset + 8 : offset + 12], "big")
    # Its other form has one place.
    if bytes(view[place + 36 : place + 40]) == b"VBRI":
        return int.from_bytes(view[place + 50 : place + 54], "big")
    return None
