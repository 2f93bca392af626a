"""What all challenges of the arena have in common."""

import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from challenge_files import about, read, written

from longspan.challenges import CHALLENGES, Challenge
from longspan.challenges.base import SPLITS, Data, Row
from longspan.errors import UserError


class Numbers(Challenge):
    """Ten numbers per split; reading stops with an error at one of them."""

    name = "numbers"
    description = "Numbers."
    length = 2

    def __init__(self, broken: str = "") -> None:
        self.broken = broken

    def open(self, given: Path | None, seed: int, sizes: Mapping[str, int]) -> Data:
        broken = self.broken

        class Ten(Data):
            def size(self, split: str) -> int:
                return 10

            def rows(self, split: str) -> Iterator[Row]:
                for number in range(10):
                    if split == broken and number == 5:
                        raise KeyboardInterrupt
                    yield {"text": f"{number}", "label": split}

        return Ten()


def test_the_challenges_are_those_of_the_paper_in_its_order() -> None:
    assert list(CHALLENGES) == ["listops", "text", "retrieval", "image", "pathfinder"]
    assert [name for name, each in CHALLENGES.items() if not each.needs] == ["listops", "pathfinder"]
    for name, each in CHALLENGES.items():
        assert each.name == name
        assert each.description.endswith(".")
        assert each.length > 0


def test_importing_them_loads_nothing_heavy() -> None:
    code = "import sys, longspan.challenges; print('\\n'.join(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not set(ran.stdout.split()) & {"torch", "transformers", "datasets", "numpy", "numba", "PIL"}


def test_an_interrupted_folder_is_not_complete_and_is_written_again(tmp_path: Path) -> None:
    Numbers().write(tmp_path, None)
    whole = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert sorted(whole) == ["about.json", "test.jsonl", "train.jsonl", "validation.jsonl"]
    with pytest.raises(KeyboardInterrupt):
        Numbers(broken="validation").write(tmp_path, None)
    # Each file is whole, but the folder is not complete.
    assert sorted(path.name for path in tmp_path.iterdir()) == ["test.jsonl", "train.jsonl", "validation.jsonl"]
    assert len(read(tmp_path / "validation.jsonl")) == 10
    Numbers().write(tmp_path, None)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == whole


def test_about_says_what_was_written(tmp_path: Path) -> None:
    written("listops", tmp_path / "new" / "folder", seed=3, train=3, validation=2, test=1)
    assert about(tmp_path / "new" / "folder") == {
        "challenge": "listops",
        "description": CHALLENGES["listops"].description,
        "source": None,
        "seed": 3,
        "sizes": {"train": 3, "validation": 2, "test": 1},
        "examples": {"train": 3, "validation": 2, "test": 1},
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", ["listops", "pathfinder"])
def test_a_split_depends_on_the_seed_and_not_on_the_sizes_of_others(name: str, tmp_path: Path) -> None:
    some = written(name, tmp_path, train=8, validation=5, test=4)
    others = written(name, tmp_path, train=3, validation=6, test=4)
    assert others["train"] == some["train"][:3]
    assert others["validation"][:5] == some["validation"]
    assert others["test"] == some["test"]
    assert written(name, tmp_path, seed=1, train=3, validation=6, test=4)["train"] != others["train"]
    texts = [row["text"] for split in SPLITS for row in some[split]]
    assert len({*texts}) == len(texts) == 17


def test_mistakes_are_told_before_anything_is_written(tmp_path: Path) -> None:
    folder, file = tmp_path / "folder", tmp_path / "file"
    file.touch()
    listops, text = CHALLENGES["listops"], CHALLENGES["text"]
    with pytest.raises(UserError, match="expected no data for listops, as it is generated, got"):
        listops.write(folder, tmp_path)
    with pytest.raises(UserError, match="expected data for text, got none; name a folder with train/ and test/"):
        text.write(folder, None)
    with pytest.raises(UserError, match="expected a seed of 0 or more, got -1"):
        listops.write(folder, None, seed=-1)
    with pytest.raises(UserError, match="there is no split 'tests'; did you mean 'test'"):
        listops.write(folder, None, sizes={"tests": 1})
    with pytest.raises(UserError, match="expected at least 1 example for the split 'test', got 0"):
        listops.write(folder, None, sizes={"test": 0})
    with pytest.raises(UserError, match="there is no file or folder"):
        text.write(folder, tmp_path / "absent")
    assert not folder.exists()
    with pytest.raises(UserError, match=r"expected a folder to write to at .*, got a file"):
        listops.write(file, None)
