"""Finding out the encoding of a file, for `data.encoding = "auto"`: `find_encoding`.

A byte order mark decides; then UTF-8, which other texts hardly ever are by accident. For everything else
charset-normalizer (https://github.com/jawah/charset_normalizer) says how plausible the lines that are not ASCII look in
each encoding in use, and in which language. As that is often only a line or two, Western European is preferred where
nothing speaks against it. Letters of languages tell ISO 8859-2 from cp1250, and find the encodings of old Macs: an
encoding wins in which one language has every letter of the text. All of the file must then be text in the encoding
found. It stays a guess, so the encoding found is reported, and `data.encoding` overrides it.
"""

import codecs
import functools
import io
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, BinaryIO

AUTO = "auto"
"""The setting that has the encoding of each file found out."""

UNKNOWN = "no known encoding"
"""The problem of a document whose encoding is not found."""

_CHUNK = 1 << 20
_SAMPLE, _LINE = 1 << 16, 1 << 12
"""Maximum number of bytes to judge by, and of one line among them."""

_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
# Those of the WHATWG's standard that charset-normalizer knows and that differ, without those of DOS and old Macs, which
# it takes for each other.
_KNOWN = (
    "cp1252", "cp1250", "iso8859_2", "cp1251", "koi8_r", "cp1253", "iso8859_7", "cp1254", "cp1255", "cp1256", "cp932",
    "euc_jp", "gb18030", "big5", "cp949",
)  # fmt: skip
_LATIN, _CENTRAL, _CYRILLIC = (
    "cp1252 mac_roman",
    "cp1250 iso8859_2 mac_latin2",
    "cp1251 koi8_r koi8_u iso8859_5 mac_cyrillic",
)
_LANGUAGES = {
    _LATIN: (
        "äöüß", "àâæçéèêëîïôœùûüÿ", "áéíñóúü", "àáâãçéêíóôõú", "àèéìíîòóù", "äåéö", "æåéøö", "áæðéíóöúýþ", "àçèéíïòóúü",
        "äöõü", "áéíóú", "éëïö",
    ),
    _CENTRAL: (
        "áéíóöőúüű", "áčďéěíňóřšťúůýž", "áäčďéíĺľňóôŕšťúýž", "ąćęłńóśźż", "ăâîşţ", "čćđšž", "äöüß",
    ),
    _CYRILLIC: (
        "абвгдежзийклмнопрстуфхцчшщъыьэюяё", "абвгґдеєжзиіїйклмнопрстуфхцчшщьюя", "абвгдеёжзійклмнопрстуўфхцчшыьэюя",
        "абвгдђежзијклљмнњопрстћуфхцчџш", "абвгдѓежзѕијклљмнњопрстќуфхцчџшѐѝ",
    ),
    "cp1253 iso8859_7": ("αβγδεζηθικλμνξοπρσςτυφχψωάέήίόύώϊϋΐΰ",),
    "cp1254": ("çğıöşüâîûi\u0307",),
    "cp1257": ("ąčęėįšųūž", "āčēģīķļņōŗšūž", "äöõüšž"),
}  # fmt: skip
"""Letters beyond ASCII of each language, by the encodings that its texts may be in."""
_SIGNS = "\u00a0«»„“”‚‘’–—…•°§©®£€½¼¾²³×·¡¿\xad№™†"
_ENOUGH = 5
"""Number of letters beyond ASCII that are enough to go by the letters of languages."""
_ALL = 0.995
"""Share of the characters beyond ASCII that counts as all of them."""
_FILES = 500
"""Number of files of a folder that are looked at together."""
_WIDE = ("utf_16_le", "utf_16_be")
_MESS = 0.1
"""Maximum share of implausible characters, as charset-normalizer counts them."""

Opened = Callable[[], AbstractContextManager[BinaryIO]]


def find_encoding(opened: Opened, likely: str = "") -> str | None:
    """Return the name of a file's encoding, as Python knows it; None if nothing fits.

    Text that is UTF-8 but for a few bytes is damaged UTF-8, and text that mixes UTF-8 with another encoding has no
    encoding. Decoded as a single one, the rest would be nonsense.

    Args:
        opened: Opens the file again, decompressed; it is read several times, in constant memory.
        likely: The encoding of the files next to it (`encoding_together`), taken where its letters explain this one.
    """
    with opened() as stream:
        head = stream.read(_LINE)
    if marked := mark_of(head):
        return marked
    wide = head.count(0) > len(head) // 5
    if not wide and _decodes(opened, "utf-8"):
        return "utf-8"
    if not wide:
        valid, invalid = _utf8_characters(opened)
        if valid >= invalid:
            return "utf-8"
        # In two bytes per character some pairs are UTF-8 by accident, among single bytes hardly any are.
        mixed = valid > 2 and valid > 0.2 * invalid
    sample = head if wide else _sample(opened)
    names = _candidates(sample, _WIDE if wide else _KNOWN)
    if not wide:
        names = _by_letters(sample, names)
        if likely and _explained(sample, likely, _LETTERS[likely], least=0) >= _ALL:
            names = [likely, *names]
    for name in names:
        name = _shortest(opened, name)
        if _decodes(opened, name) and not (not wide and mixed and len(sample.decode(name, "replace")) == len(sample)):
            return name
    return None


def mark_of(head: bytes) -> str:
    """The encoding of which the first bytes of a file are the byte order mark; empty if they are none."""
    return next((name for mark, name in _MARKS if head.startswith(mark)), "")


def find_encoding_of(content: bytes, likely: str = "") -> str | None:
    """Return the name of the encoding of a text in memory; None if nothing fits. See `find_encoding`."""
    return find_encoding(lambda: nullcontext(io.BytesIO(content)), likely)


def encoding_together(files: Sequence[Opened]) -> str:
    """The encoding in which the letters of one language explain all of several files that are not UTF-8; else "".

    A file alone may have too few letters to tell.
    """
    sample = bytearray()
    for opened in files[:: max(1, len(files) // _FILES)]:
        with opened() as stream:
            head = stream.read(_SAMPLE)
        if not (head.isascii() or mark_of(head) or head.count(0) > len(head) // 5 or _decodes(opened, "utf-8")):
            sample += _sample(lambda head=head: nullcontext(io.BytesIO(head)))[:_LINE]  # type: ignore[misc]
        if len(sample) >= _SAMPLE:
            break
    if not sample:
        return ""
    found = next(iter(_by_letters(bytes(sample), _candidates(bytes(sample), _KNOWN))), "")
    return found if found in _LETTERS and _explained(bytes(sample), found, _LETTERS[found]) >= _ALL else ""


@functools.cache
def detector() -> str:
    """Return the name and version of what judges encodings."""
    # Slow to import, and `longspan --help` imports this module.
    from importlib import metadata

    return f"charset-normalizer {metadata.version('charset-normalizer')}"


def _chunks(opened: Opened) -> Iterator[bytes]:
    with opened() as stream:
        while chunk := stream.read(_CHUNK):
            yield chunk


def _decodes(opened: Opened, encoding: str) -> bool:
    """Return whether all of a file is text in the encoding, without the control characters of ISO 6429's C1."""
    decoder = codecs.getincrementaldecoder(encoding)()
    check = encoding != "utf-8"
    try:
        for chunk in _chunks(opened):
            text = decoder.decode(chunk)
            if check and not text.isascii() and any("\x80" <= character <= "\x9f" for character in set(text)):
                return False
        decoder.decode(b"", True)
    except UnicodeError:
        return False
    return True


def _utf8_characters(opened: Opened) -> tuple[int, int]:
    """Number of characters beyond ASCII that are UTF-8, and number of bytes that are not."""
    decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
    valid = invalid = 0
    for chunk in _chunks(opened):
        text = decoder.decode(chunk)
        if not text.isascii():
            others = len(text) - len(text.encode("ascii", "ignore"))
            damaged = len(text) - len(text.encode("utf-8", "ignore").decode())
            valid, invalid = valid + others - damaged, invalid + damaged
    return valid, invalid + len(decoder.decode(b"", True))


def _shortest(opened: Opened, name: str) -> str:
    """Return "latin-1" instead of "cp1252" where no byte tells them apart."""
    if name != "cp1252":
        return name
    apart = bytes(range(0x80, 0xA0))
    same = all(len(chunk.translate(None, apart)) == len(chunk) for chunk in _chunks(opened))
    return "latin-1" if same else name


def _sample(opened: Opened) -> bytes:
    """Return the first lines that are not ASCII; the others say nothing."""
    found = bytearray()
    for chunk in _chunks(opened):
        if chunk.isascii():
            continue
        for line in chunk.splitlines(keepends=True):
            if not line.isascii():
                found += _around(line)
                if len(found) >= _SAMPLE:
                    return bytes(found)
    return bytes(found)


def _around(line: bytes) -> bytes:
    """Return the part of a long line where it stops being ASCII, cut at bytes that are never inside a character."""
    if len(line) <= _LINE:
        return line
    first = len(line) - len(line.lstrip(bytes(range(0x80))))
    part = line[max(0, first - _LINE // 8) : first + _LINE]
    ends = [place for place, byte in enumerate(part) if byte < 0x30]
    start = max((place for place in ends if place < len(part) // 8), default=0)
    return part[start : ends[-1] + 1] if ends and ends[-1] > start else part


def _candidates(sample: bytes, known: tuple[str, ...]) -> list[str]:
    """Return encodings in which a sample may be, the likeliest first."""
    import charset_normalizer

    found: list[Any] = list(charset_normalizer.from_bytes(sample, cp_isolation=list(known)))
    matches = [match for match in found if match.chaos <= _MESS]
    names = [name for match in matches for name in (match.encoding, *match.could_be_from_charset) if name in known]
    # Two encodings of a language often differ in signs, which then stand within words, as do letters of another script.
    names = [name for name in names if _odd(sample, name)[0] < 0.3]
    names.sort(key=lambda name: _odd(sample, name)[0] > 0.03)
    if known == _KNOWN and max(_odd(sample, "cp1252")) <= 0.1:
        western = [match for match in matches if "cp1252" in (match.encoding, *match.could_be_from_charset)]
        # Without the language known, plausible letters are all there is to go by.
        if (
            not matches
            or matches[0].coherence < 0.2
            or (
                western
                and western[0].chaos <= matches[0].chaos + 0.02
                and western[0].coherence >= matches[0].coherence - 0.04
            )
        ):
            # These differ in the six letters that only Turkish has.
            turkish = [match for match in matches if match.encoding == "cp1254" and match.language == "Turkish"]
            better = turkish and turkish[0].coherence >= max((match.coherence for match in western), default=0)
            names.insert(0, "cp1254" if better else "cp1252")
    return list(dict.fromkeys(names))


def _by_letters(sample: bytes, names: list[str]) -> list[str]:
    """Encodings in which the letters of one language explain all of a sample, if those of none do in the likeliest."""
    shares = {name: _explained(sample, name, letters) for name, letters in _LETTERS.items()}
    best = max(shares.values())
    known = next(iter(names), "")
    # Encodings of several bytes have no letters; half-width kana are what they make of others.
    likeliest = 0.0 if not known or _halves(sample, known) > 0.2 else 1.0
    if known in _LETTERS:
        likeliest = _explained(sample, known, _LETTERS[known], least=0)
    if best < _ALL or likeliest >= _ALL:
        return names
    return [*(name for name, share in shares.items() if share == best), *names]


_LETTERS = {name: languages for group, languages in _LANGUAGES.items() for name in group.split()}


def _explained(sample: bytes, name: str, languages: tuple[str, ...], least: int = _ENOUGH) -> float:
    """Largest share of the characters beyond ASCII that are letters of one of the languages, or signs between words.

    It is 0 where fewer than `least` are letters, or the sample is not text in the encoding.
    """
    try:
        text = sample.decode(name)
    except UnicodeDecodeError:
        return 0.0
    total = letters_beyond = signs = 0
    found: Counter[str] = Counter()
    for before, character, after in zip(f" {text}", text, f"{text[1:]} ", strict=False):
        if character.isascii():
            continue
        total += 1
        letters_beyond += character.isalpha()
        if character in _SIGNS:
            signs += character in "’\xad" or not (before.isalpha() and after.isalpha())
        # Other scripts do not mix with Latin letters.
        elif character < "\u0370" or not any(beside.isascii() and beside.isalpha() for beside in (before, after)):
            found[character.lower()] += 1
    if letters_beyond < least:
        return 0.0
    of_language = max(sum(found[letter] for letter in letters) for letters in languages)
    return (of_language + signs) / max(1, total)


def _halves(sample: bytes, name: str) -> float:
    """Share of half-width kana among the characters beyond ASCII."""
    text = [character for character in sample.decode(name, "replace") if not character.isascii()]
    return sum("\uff61" <= character <= "\uff9f" for character in text) / max(1, len(text))


def _odd(sample: bytes, name: str) -> tuple[float, float]:
    """Return two shares of the characters beyond ASCII. The first counts signs within words and letters of other
    scripts next to ASCII letters, the second letters with no ASCII letter next to them.

    They are 1 where the sample is not text in the encoding, and 0 in encodings of several bytes per character.
    """
    try:
        text = sample.decode(name)
    except UnicodeDecodeError:
        return 1.0, 1.0
    if len(text) != len(sample):
        return 0.0, 0.0
    total = signs = letters = 0
    for before, character, after in zip(f" {text}", text, f"{text[1:]} ", strict=False):
        if not character.isascii():
            total += 1
            beside = [other for other in (before, after) if other.isalpha()]
            if character.isalpha():
                plain = any(other.isascii() for other in beside)
                letters += bool(beside) and not plain
                signs += plain and not unicodedata.name(character, "").startswith("LATIN")
            else:
                # The apostrophe and the soft hyphen belong there.
                signs += len(beside) == 2 and character not in "’\xad"
    return signs / max(1, total), letters / max(1, total)
