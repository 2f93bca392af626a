"""Explanations of every task."""

import pytest

from longspan import tasks
from longspan.tasks.base.task import Task


@pytest.mark.parametrize("name", tasks.names())
def test_every_task_says_what_there_is_to_explain(name: str) -> None:
    assert type(tasks.load(name)).case is not Task.case
