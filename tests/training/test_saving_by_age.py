"""Checkpoints by age."""

import time

import pytest
from transformers import TrainerControl, TrainerState

from longspan.training.callbacks import SaveByAge


def test_a_checkpoint_is_saved_when_the_last_one_is_old(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    saving, state, control = SaveByAge(hours=0.5), TrainerState(), TrainerControl()

    def saves_after(seconds: float) -> bool:
        nonlocal now
        now += seconds
        control.should_save = False
        saving.on_step_end(None, state, control)
        return control.should_save

    saving.on_train_begin(None, state, control)
    assert not saves_after(1799)
    assert saves_after(1)
    # It is asked for again until it is there.
    assert saves_after(1)
    saving.on_save(None, state, control)
    assert not saves_after(1799)
    control.should_save = True
    saving.on_step_end(None, state, control)
    assert control.should_save, "one that was to be saved anyway"
