"""The table of a training run: what remains on a terminal, and in a log file."""

import io
import os
import re

import pytest

from longspan.training import callbacks
from longspan.training.callbacks import NEWEST, EpochTable, Losses

COLUMNS = {"epoch": "epoch", "loss": "training loss", "eval_loss": "cross-entropy"}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    def screen(self) -> list[str]:
        """Return the lines that remain: those above which the cursor moves up are erased."""
        lines: list[str] = []
        for piece in re.split("(\x1b\\[\\d+A\x1b\\[J)", self.getvalue()):
            if moved := re.match("\x1b\\[(\\d+)A", piece):
                assert int(moved[1]) <= len(lines)
                lines = lines[: -int(moved[1])]
            else:
                lines += piece.splitlines()
        return lines


def filled(out: io.StringIO, losses: list[float]) -> EpochTable:
    table = EpochTable(COLUMNS, "eval_loss", False, out)
    for number, loss in enumerate(losses, 1):
        table.add({"epoch": float(number), "loss": 2 * loss, "eval_loss": loss})
    return table


def test_a_log_file_has_one_header_and_one_aligned_line_for_each_validation() -> None:
    out = io.StringIO()
    filled(out, [0.5, 0.25, 0.75])
    header, rule, *rows = out.getvalue().splitlines()
    assert header == "      epoch  training loss  cross-entropy"
    assert rule == "   --------  -------------  -------------"
    assert rows == [
        "*      1.00         1.0000         0.5000",
        "*      2.00         0.5000         0.2500",
        "       3.00         1.5000         0.7500",
    ]
    assert "".join(out.getvalue().split("\n")).isprintable()


def test_a_terminal_shows_the_best_and_the_newest_rows_of_a_long_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callbacks.shutil, "get_terminal_size", lambda: os.terminal_size((100, 40)))
    out = Terminal()
    filled(out, [0.5, 0.25, *[0.75] * 30])
    screen = out.screen()
    assert screen[0].split() == ["epoch", "training", "loss", "cross-entropy"]
    assert [line[1:].split()[0] for line in screen[2:]] == ["2.00", "...", *(f"{n}.00" for n in range(33 - NEWEST, 33))]
    assert screen[2].startswith("*")


def test_a_terminal_of_another_size_gets_a_new_table(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = [os.terminal_size((100, 40))] * 20 + [os.terminal_size((30, 40))] * 20
    monkeypatch.setattr(callbacks.shutil, "get_terminal_size", lambda: sizes.pop(0))
    out = Terminal()
    filled(out, [0.75] * 40)
    headers = [line for line in out.screen() if line.lstrip().startswith("epoch")]
    # What was drawn for the old size is left alone; nothing wraps in the new one.
    assert [len(line) for line in headers] == [41, 26]
    assert len(out.screen()) == 2 * (2 + 2 + NEWEST)


def test_the_best_row_before_a_run_was_resumed_stays_the_best() -> None:
    out = io.StringIO()
    table = EpochTable(COLUMNS, "eval_loss", False, out)
    assert table.improves({"eval_loss": 0.25})
    assert not table.improves({"loss": 0.1})
    assert not table.improves({"eval_loss": float("nan")})
    table.add({"epoch": 1.0, "eval_loss": 0.5})
    assert out.getvalue().splitlines()[-1] == "       1.00              -         0.5000"


def test_the_training_loss_of_a_row_is_the_mean_over_steps_since_the_last_one() -> None:
    losses = Losses()
    losses.add(4.0, 1)
    losses.add(1.0, 4)
    assert losses.since_last_asked() == {"loss": (4 + 3) / 4}
    assert losses.since_last_asked() == {}
    losses.add(2.0, 6)
    assert losses.since_last_asked() == {"loss": 2.0}
