"""Files are written whole or not at all, and never through links."""

import stat
from pathlib import Path

import pytest

from longspan.errors import UserError
from longspan.results.outputs import folder_in, replacing, write_json, write_json_lines, write_text


def test_a_file_is_replaced_with_the_usual_permissions(tmp_path: Path) -> None:
    path = tmp_path / "metrics.json"
    write_text(path, "old")
    write_json(path, {"größe": 1})
    assert path.read_text(encoding="utf-8") == '{\n  "größe": 1\n}\n'
    (tmp_path / "plain").touch()
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE((tmp_path / "plain").stat().st_mode)


def test_a_link_is_replaced_and_its_target_kept(tmp_path: Path) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("mine")
    link = tmp_path / "run" / "errors.txt"
    link.parent.mkdir()
    link.symlink_to(notes)
    write_text(link, "new")
    assert notes.read_text() == "mine"
    assert not link.is_symlink()
    assert link.read_text() == "new"


def test_after_an_error_all_is_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "figure.png"
    path.write_text("old")

    def draw() -> None:
        with replacing(path) as fresh:
            assert fresh.suffix == ".png"
            fresh.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        draw()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_is_not_replaced(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="got a folder"):
        write_text(tmp_path, "text")


def test_folders_below_the_named_one_may_not_be_links(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    own = tmp_path / "own"
    own.symlink_to(elsewhere)
    # The user's own link is followed, what is found behind it is not.
    assert folder_in(own, "a", "b").is_dir()
    (elsewhere / "evaluation").symlink_to(tmp_path)
    with pytest.raises(UserError, match="got a link; remove it"):
        folder_in(own, "evaluation", "checkpoint-1")
    (elsewhere / "file").touch()
    with pytest.raises(UserError, match="got a file; remove it"):
        folder_in(own, "file")
    (elsewhere / "dangling").symlink_to("nowhere")
    with pytest.raises(UserError, match="got a link; remove it"):
        folder_in(own, "dangling")


def test_json_lines_are_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    assert write_json_lines(path, ({"größe": number, "text": "a\nb"} for number in range(2))) == 2
    whole = '{"größe": 0, "text": "a\\nb"}\n{"größe": 1, "text": "a\\nb"}\n'
    assert path.read_text(encoding="utf-8") == whole
    with pytest.raises(ZeroDivisionError):
        write_json_lines(path, ({"number": 1 // (1 - number)} for number in range(2)))
    assert path.read_text(encoding="utf-8") == whole
    assert list(tmp_path.iterdir()) == [path]
