"""The queue of a lane and stage."""

from __future__ import annotations

import pytest

from zephon.engine.tasks import Origin, Queue, Task


def test_a_task_that_is_missing_is_noticed() -> None:
    queue = Queue()
    for base in range(3):
        queue.put(Task(Origin(base), 0))
    assert queue.take().origin.base == 0
    del queue[0]
    with pytest.raises(AssertionError, match="task 1 is missing; 2 is here"):
        queue.take()
