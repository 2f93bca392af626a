"""`data.encoding = "auto"`: each file is read as what it is, what was found is told, and nothing becomes nonsense."""

import gzip
import io
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import datasets
import pytest

from longspan.data.columns.kinds import Column, Label, Text
from longspan.data.sources import loading
from longspan.data.sources.files import encodings
from longspan.data.sources.files.encodings import find_encoding_of
from longspan.data.sources.formats.rows import Row
from longspan.data.sources.paths import read_paths
from longspan.errors import UserError
from longspan.tasks.document_classification.options import ClassificationData

TEXT: list[Column] = [Text("text", "text_column")]
LABELLED: list[Column] = [*TEXT, Label("label", "label_column")]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def write(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


MESSAGE = (
    "From: someone@example.edu\nSubject: Re: Question about cards\n\nI bought a new card last week, and it does not "
    "work with my machine.\nDoes anyone know where I could find drivers? Thanks in advance for any help.\n"
) * 5
SIGNED = {
    "latin-1": [
        "-- \nJürgen Müller, Köln\n",
        "-- \nAndré\n",
        "It costs £40, and weighs 3½ lb.\n",
        "© 1993 Acme, Inc.\n",
    ],
    "cp1252": ["“It’s fine” – he said…\n", "It costs 40 € only.\n"],
    "cp1251": ["-- \nСергей Иванов, Москва\n"],
    "koi8-r": ["-- \nСергей Иванов, Москва\n"],
}
TEXTS = {
    "latin-1": "Die Größe der Häuser in den Straßen von München überraschte die Gäste. L'été dernier, à la mer.",
    "cp1250": "W tym roku pojechaliśmy na wakacje nad morze, gdzie było bardzo ładnie i ciepło. Dzieci bawiły się.",
    "iso8859-2": "Zażółć gęślą jaźń, powiedział stary człowiek do swojej córki. ",
    "cp1251": "Съешь же ещё этих мягких французских булок, да выпей чаю. ",
    "cp1253": "Η γρήγορη καφέ αλεπού πηδάει πάνω από το τεμπέλικο σκυλί. ",
    "cp1254": "Bu yıl tatil için denize gittik, hava çok güzeldi. Çocuklar çok eğlendi ve şarkılar söyledi. ",
    "shift-jis": "吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。",
    "euc-jp": "吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。",
    "gbk": "我们认为这些真理是不言而喻的，人人生而平等。",
    "big5": "我們認為這些真理是不言而喻的，人人生而平等。",
    "euc-kr": "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다. ",
    "utf-16": "Grüße",
    "utf-16-le": MESSAGE,
    "utf-32": "Grüße",
    "utf-8-sig": "Grüße",
    "utf-8": "Grüße",
}


#: What stands for two encodings or more, which differ in a few letters.
CLOSE = {
    "A szőlőhegyen túl, a régi malom mögött lakott egy öregember, aki minden ősszel körtét árult.": (
        "cp1250", "iso8859-2", "mac-latin2",
    ),
    "Žlutý kůň běžel přes louku k řece, kde ho čekal šťastný chlapec. Bylo už pozdě večer.": (
        "cp1250", "iso8859-2", "mac-latin2",
    ),
    "Stará mať varila na piecke polievku, kým deti čítali rozprávky. Vonku padal ľahký dážď so snehom.": (
        "cp1250", "iso8859-2", "mac-latin2",
    ),
    "Często śpię źle, gdy wieje wiatr. Książka leży na półce, a żółty kot goni myszy.": (
        "cp1250", "iso8859-2", "mac-latin2",
    ),
    "Hüte dich vor bösen Füchsen, rief der Förster und schloß die Tür. Später fiel Schnee auf die Äcker.": (
        "cp1252", "latin-1", "mac-roman",
    ),
    "Où est passée la clé du château? demanda le garçon, très fâché. Personne ne répondit à sa mère.": (
        "cp1252", "latin-1", "mac-roman",
    ),
    "Não sei onde está o coração desta cidade, disse a avó. Amanhã virão os irmãos, três ou cinco.": (
        "cp1252", "latin-1", "mac-roman",
    ),
    "Старый дом стоял на краю деревни. Никто не жил там уже много лет, кроме чёрной кошки.": (
        "cp1251", "koi8-r", "mac-cyrillic", "iso8859-5",
    ),
    "Їжак ішов лісом, шукаючи гриби та ягоди. Його діти чекали вдома, під старою грушею.": (
        "cp1251", "koi8-u", "mac-cyrillic",
    ),
    "Vėjas pūtė iš šiaurės, o vaikai žaidė kieme. Ąžuolas šlamėjo visą naktį.": ("cp1257",),
}  # fmt: skip


@pytest.mark.parametrize(("text", "encoding"), [(text, name) for text, names in CLOSE.items() for name in names])
def test_encodings_that_differ_in_few_letters(text: str, encoding: str) -> None:
    content = text.encode(encoding)
    found = find_encoding_of(content)
    assert found is not None
    assert content.decode(found) == text


@pytest.mark.parametrize("encoding", ["cp1250", "iso8859-2", "mac-latin2"])
def test_files_of_a_folder_are_looked_at_together(tmp_path: Path, encoding: str) -> None:
    """Each has a letter or two, with which any of these encodings would do."""
    words = ["koš", "žena", "kůň", "dešťový", "město", "řeka", "věž", "šíp", "čaj", "tužka", "líný", "dívka"]
    for number, word in enumerate(words):
        write(tmp_path / "a" / f"{number:02}.txt", f"{number}: {word} abc\n".encode(encoding))
    write(tmp_path / "a" / "plain.txt", b"plain\n")
    write(tmp_path / "a" / "utf.txt", "žlutý\n".encode())
    found = list(read_paths([tmp_path / "a"], TEXT, ClassificationData(encoding="auto")))
    wanted = [f"{number}: {word} abc\n" for number, word in enumerate(words)]
    assert [row.values["text"] for row in found] == [*wanted, "plain\n", "žlutý\n"]


def test_names_from_several_languages_stay_western() -> None:
    text = "Among those present: Jürgen Müller, José Muñoz, Søren Ångström, François Lefèvre and João Conceição. " * 2
    assert find_encoding_of(text.encode("cp1252")) in ("cp1252", "latin-1")


@pytest.mark.parametrize("encoding", TEXTS)
def test_texts_in_many_languages(encoding: str) -> None:
    content = (TEXTS[encoding] * 3).encode(encoding)
    found = find_encoding_of(content)
    assert found is not None
    assert content.decode(found).removeprefix("\ufeff") == TEXTS[encoding] * 3


@pytest.mark.parametrize("encoding", SIGNED)
def test_a_few_letters_at_the_end_of_a_message(encoding: str) -> None:
    for line in SIGNED[encoding]:
        content = (MESSAGE + line).encode(encoding)
        found = find_encoding_of(content)
        assert found is not None
        assert content.decode(found) == MESSAGE + line


def newsgroups(root: Path) -> dict[str, str]:
    """Write folders of messages without suffixes, a tenth of them in other encodings; return what is in them."""
    written = {}
    lines = [("utf-8", "Grüße\n")] * 30 + [(name, line) for name, some in SIGNED.items() for line in some]
    for number, (encoding, line) in enumerate(lines * 2):
        group = "rec.autos" if number % 2 else "sci.space"
        text = f"{MESSAGE}{number}\n{line}"
        write(root / group / f"{10000 + number}", text.encode(encoding))
        written[f"{group}/{10000 + number}"] = text
    return written


def test_newsgroups_among_which_some_messages_are_not_utf8(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written = newsgroups(tmp_path / "news")
    config = ClassificationData(path=str(tmp_path / "news"), encoding="auto")
    told = "longspan: 16 of 76 documents are not in UTF-8: 8 latin-1, 4 cp1252, 2 cp1251, 2 koi8-r.\n"
    for _ in range(2):
        # The second time, from the cache.
        found = loading.load(config, LABELLED, stratify="label")
        assert told in capsys.readouterr().err
        assert found.encodings == {"latin-1": 8, "cp1252": 4, "cp1251": 2, "koi8-r": 2}
        rows = {row["where"]: row["text"] for split in found.splits.values() for row in split}
        assert rows == written
        assert found.splits["train"].column_names == ["text", "label", "where"]
    rows = {row.where: row.values["text"] for row in read_paths([tmp_path / "news"], TEXT, config)}
    assert rows == written
    assert told in capsys.readouterr().err
    other = ClassificationData(path=str(tmp_path / "news"))
    with pytest.raises(UserError, match=r"broken UTF-8 in 16 rows \(first: .*\); fix them, set data.encoding=auto to"):
        loading.load(other, LABELLED)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        # One byte too many does not make the rest another encoding.
        ("Grüße aus Köln\n".encode() * 20 + b"\xff", "broken UTF-8"),
        # One part as the other would be nonsense.
        ("Grüße aus Köln ".encode() * 2 + "Grüße aus Köln ".encode("latin-1") * 4, "no known encoding"),
        (b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 10, "not text (a picture)"),
        (gzip.compress(MESSAGE.encode() * 20, mtime=0), "not text (a gzip file)"),
        ("Die Größe der Häuser überraschte die Gäste. ".encode("cp437") * 9, "no known encoding"),
    ],
)
def test_what_is_in_no_one_encoding_is_a_bad_row(tmp_path: Path, content: bytes, problem: str) -> None:
    (row,) = read_paths([write(tmp_path / "a.txt", content)], TEXT, ClassificationData(encoding="auto"))
    assert row.problem == problem
    assert row.values == {}
    with pytest.raises(UserError, match=r"expected text in an encoding that is known, got .* at a.txt, byte \d+; save"):
        loading.load(ClassificationData(path=str(tmp_path / "a.txt"), encoding="auto"), TEXT)


@pytest.mark.slow
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "cp1251", "utf-16"])
def test_tables(tmp_path: Path, name: str, encoding: str, pack: Callable[[bytes], bytes]) -> None:
    line = SIGNED[encoding][0].splitlines()[-1] if encoding in SIGNED else "Grüße"
    lines = [f"plain {number}" for number in range(3000)] + [line, "last"]
    if name == "a.csv":
        content = "text\n" + "".join(f'"{line}"\n' for line in lines)
    else:
        content = "".join(json.dumps({"text": line}, ensure_ascii=False) + "\n" for line in lines)
    path = write(tmp_path / (name if pack is bytes else f"{name}.gz"), pack(content.encode(encoding)))
    rows = list(read_paths([path], TEXT, ClassificationData(encoding="auto")))
    assert [row.values["text"] for row in rows] == lines
    expected = {"utf-8": "", "utf-16": "utf-16"}.get(encoding, encoding)
    assert {row.encoding for row in rows} == {expected}
    found = loading.load(ClassificationData(path=str(path), encoding="auto"), TEXT)
    assert found.encodings == ({expected: len(lines)} if expected else {})


def test_a_table_with_a_few_bad_bytes_stays_utf8(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", b"text\n" + "Grüße\n".encode() * 9 + b"bad \xff\nGood\n")
    problems = Counter(row.problem for row in read_paths([path], TEXT, ClassificationData(encoding="auto")))
    assert problems == {"": 10, "broken UTF-8": 1}
    path = write(tmp_path / "b.csv", b"text\n" + bytes(range(128, 256)) * 99)
    with pytest.raises(UserError, match=r"one encoding in b.csv, got what is in none .*; set data.encoding to"):
        list(read_paths([path], TEXT, ClassificationData(encoding="auto")))


def test_lines_of_standard_input_are_judged_one_by_one(capsys: pytest.CaptureFixture[str]) -> None:
    lines = ["Grüße\n".encode(), "André\n".encode("latin-1"), b"plain\r\n", bytes(range(128, 256)) * 4 + b"\n"]
    lines.append('{"text": "Köln"}'.encode("latin-1"))
    rows = list(read_paths(["-"], TEXT, ClassificationData(encoding="auto"), stdin=io.BytesIO(b"".join(lines))))
    assert [row.values.get("text") for row in rows] == ["Grüße", "André", "plain", None, "Köln"]
    assert rows[3] == Row({}, "standard input, line 4", "no known encoding")
    assert capsys.readouterr().err == "longspan: 2 of 5 documents are not in UTF-8: 2 latin-1.\n"


def test_long_files_are_judged_by_parts_in_little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # No part ends inside a character, and all of the file is checked, not only what was judged by.
    for name in ("shift-jis", "gbk", "cp1251"):
        content = ("plain text " * 1000 + TEXTS[name] * 300 + "\n").encode(name)
        found = find_encoding_of(content)
        assert found is not None
        assert content.decode(found) == content.decode(name)
    german = TEXTS["latin-1"] + "\n"
    content = (german * 2000).encode("latin-1") + "schön ” bar\n".encode("cp1252") * 3
    assert find_encoding_of(content) == "cp1252"
    monkeypatch.setattr(encodings, "_candidates", lambda *_: ["ascii", "cp1253", "latin-1"])
    # The second cannot decode the end.
    assert find_encoding_of((german * 2000).encode("latin-1") + b"\xd2\xff") == "latin-1"


def test_one_process_of_several_says_what_was_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "a.txt", "André".encode("latin-1"))
    monkeypatch.setenv("RANK", "1")
    assert len(list(read_paths([path], TEXT, ClassificationData(encoding="auto")))) == 1
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("RANK", "0")
    assert len(list(read_paths([path], TEXT, ClassificationData(encoding="auto")))) == 1
    assert capsys.readouterr().err == "longspan: 1 of 1 documents is not in UTF-8: 1 latin-1.\n"
