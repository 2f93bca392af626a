"""Nothing that a file names is imported, looked for or called without consent."""

import abc
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from longspan.errors import UserError
from longspan.machine import imports
from longspan.machine.imports import allow, load_class, named_in


class Base(abc.ABC):
    @abc.abstractmethod
    def work(self) -> None: ...


class Mine(Base):
    def work(self) -> None: ...


class Other:
    pass


a_function = len
an_instance = Mine()

PACKAGE = {
    "__init__.py": "from pathlib import Path\nPath(__file__).with_name('ran').touch()\n",
    "mixers.py": f"from {__name__} import Base\nclass Good(Base):\n    def work(self): ...\nclass Half(Base): ...\n",
    "lazy.py": (
        "def __getattr__(name):\n    if name != 'Good':\n        raise AttributeError(name)\n"
        "    from strange.mixers import Good\n    return Good\n"
    ),
    "broken.py": "import not_installed_anywhere\n",
    "crooked.py": "class Good(:\n",
    "below/__init__.py": "",
    "below/more.py": "from strange.mixers import Good\n",
}


@pytest.fixture
def strange(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package in the current directory which leaves a file `ran` when it is imported."""
    for name, content in PACKAGE.items():
        path = tmp_path / "strange" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(imports, "_loaded", set())
    yield tmp_path / "strange/ran"
    for name in [name for name in sys.modules if name.partition(".")[0] in ("strange", "strangers")]:
        del sys.modules[name]
    importlib.invalidate_caches()


def load(path: str, **options: tuple[str, ...]) -> type[Base]:
    return load_class(path, Base, what="mixer", **options)


@pytest.mark.parametrize("on_path", [True, False])
@pytest.mark.parametrize(
    "path", ["strange.mixers.Good", "strange.Good", "strange.below.more.Good", "strange.no.such.X"]
)
def test_nothing_is_imported_without_consent(
    path: str, on_path: bool, strange: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if on_path:
        monkeypatch.syspath_prepend(str(strange.parent.parent))
    with named_in("runs/theirs/config.json"), pytest.raises(UserError) as refusal:
        load(path, allow_imports=("strangers", "strang", "strange_", "mixers", "Good"))
    assert not strange.exists()
    assert "strange" not in sys.modules
    for told in (f"mixer '{path}'", "'runs/theirs/config.json'", "--allow-import strange,", "('strange',)"):
        assert told in str(refusal.value)


@pytest.mark.parametrize("name", ["strange", "strange.mixers", "strange.mixers.Good"])
def test_consent_covers_what_is_below_it(name: str, strange: Path) -> None:
    assert load("strange.mixers.Good", allow_imports=(name,)).__module__ == "strange.mixers"
    assert strange.exists()
    with allow(name):
        assert load("strange.mixers.Good") is sys.modules["strange.mixers"].Good


def test_consent_ends_with_its_block(strange: Path) -> None:
    with allow("strangers"), allow("strange"):
        pass
    with pytest.raises(UserError, match="has not been imported"):
        load("strange.mixers.Good")
    with allow("strange"), allow("strangers"):
        load("strange.mixers.Good")


def test_consent_to_one_module_is_not_consent_to_its_neighbours(strange: Path) -> None:
    load("strange.mixers.Good", allow_imports=("strange.mixers",))
    with pytest.raises(UserError, match=r"strange.below.more.Good' is code that has not been imported"):
        load("strange.below.more.Good", allow_imports=("strange.mixers", "strange.below.mor"))
    assert "strange.below" not in sys.modules


def test_what_is_imported_already_needs_no_consent(strange: Path) -> None:
    assert load(f"{__name__}.Mine") is Mine
    sys.path.append(str(Path.cwd()))
    importlib.import_module("strange.mixers")
    load("strange.mixers.Good")


def test_a_module_that_imports_what_it_is_asked_for_is_not_asked_without_consent(strange: Path) -> None:
    sys.path.append(str(Path.cwd()))
    importlib.import_module("strange.lazy")
    with pytest.raises(UserError, match="--allow-import strange"):
        load("strange.lazy.Good")
    assert "strange.mixers" not in sys.modules
    load("strange.lazy.Good", allow_imports=("strange",))
    # A model of this class is built again, to be compared or loaded.
    load("strange.lazy.Good")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("os._exit", "got a builtin_function_or_method"),
        ("os.path", "got a module"),
        (f"{__name__}.a_function", "got a builtin_function_or_method"),
        (f"{__name__}.an_instance", "got a Mine"),
        (f"{__name__}.Other", "got another class"),
        ("builtins.object", "got another class"),
        ("builtins.type", "got another class"),
        ("builtins.__import__", "got a builtin_function_or_method"),
        (f"{__name__}.Base", r"complete, got a class without work;"),
        (f"{__name__}.Mines", r"expected the mixer 'Mines' in .*, got none; did you mean 'Mine'\?"),
        (f"{__name__}.__dict__", "expected the mixer '__dict__'"),
        (f"{__name__}.__builtins__", "got a dict"),
    ],
)
def test_only_classes_of_the_kind_that_is_asked_for(path: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load(path)


NOT_PATHS = [
    "",
    ".",
    "Mine",
    "..strange.Good",
    ".strange.Good",
    "strange..Good",
    "strange.Good.",
    "strange/mixers.Good",
]
NOT_PATHS += ["strange.mixers:Good", "strange.Good()", "strange.class", "strange.Good\n", " strange.Good", "strange.1"]
NOT_PATHS += ["/tmp/evil.py", "../evil.Evil", "C:\\evil.Evil", "strange\0.Good", "strange.m\u2024Good"]


@pytest.mark.parametrize("path", NOT_PATHS)
def test_what_is_not_a_dotted_path(path: str, strange: Path) -> None:
    with pytest.raises(UserError, match="dotted path such as") as refusal:
        load(path, allow_imports=("strange",))
    assert str(refusal.value).isascii()
    assert str(refusal.value).isprintable()
    assert not strange.exists()


def test_letters_that_only_look_like_others_are_told_apart(strange: Path) -> None:
    with allow("strange"), pytest.raises(UserError, match=r"'str\\u0430nge.mixers.Good' is code that has not been"):
        load("str\u0430nge.mixers.Good")
    assert not strange.exists()


@pytest.mark.parametrize("name", ["", ".", "*", "strange.", "./strange", "strange.mixers:Good", "mypackage,strange"])
def test_consent_to_what_cannot_be_a_module(name: str, strange: Path) -> None:
    with pytest.raises(UserError, match="expected the name of a package or module"), allow(name):
        pass
    with pytest.raises(UserError, match="expected the name of a package or module"):
        load("strange.mixers.Good", allow_imports=(name,))
    assert not strange.exists()


def test_consent_as_a_text_is_no_list_of_letters() -> None:
    with pytest.raises(UserError, match=r"write \('strange',\)"):
        load("s.t", allow_imports="strange")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("strange.nothing.Good", r"got an error \(.*'strange.nothing'\); check the path"),
        ("strange.broken.Good", r"got an error \(.*'not_installed_anywhere'\)"),
        ("strange.crooked.Good", r"got an error \(.*crooked.py"),
        ("strange.mixers.Goood", r"did you mean 'Good'\?"),
        ("strange.mixers.Half", "got a class without work"),
        ("strangers.Good", r"got an error \(.*'strangers'\).*strangers is installed, in the current directory"),
    ],
)
def test_consent_to_what_is_not_there(path: str, message: str, strange: Path) -> None:
    with pytest.raises(UserError, match=message):
        load(path, allow_imports=("strange", "strangers"))


def test_the_current_directory_hides_nothing_and_comes_only_with_consent(strange: Path) -> None:
    Path("numbers.py").write_text("raise SystemExit('not this one')")
    Path("tomllib.py").write_text("raise SystemExit('not this one')")
    sys.path[:] = [entry for entry in sys.path if entry not in ("", str(Path.cwd()))]
    before = [*sys.path]
    with pytest.raises(UserError):
        load("numbers.Integral", allow_imports=("numbers", "tomllib"))
    assert sys.path == before
    load("strange.mixers.Good", allow_imports=("strange",))
    assert sys.path == [*before, str(Path.cwd())]


def test_a_process_that_is_started_gets_the_same_consent(strange: Path) -> None:
    assert imports.consent_flags() == []
    with allow("other", "strange"):
        load("strange.mixers.Good")
        flags = ["--allow-import", "other", "--allow-import", "strange", "--allow-import", "strange.mixers"]
        assert imports.consent_flags() == flags
    # What this process imported is known to be wanted, even if nobody named it.
    assert imports.consent_flags() == flags[4:]
