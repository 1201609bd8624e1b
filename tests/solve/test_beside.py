"""Work in a thread while this process waits for a crew."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from sailor.solve.beside import Beside


def test_a_result_is_taken_once_and_work_is_counted():
    with Beside[int]() as beside:
        assert beside.taken() is None
        beside.begin(lambda over: 7)
        while beside.busy:
            time.sleep(0.001)
        assert (beside.taken(), beside.taken(), beside.begun) == (7, None, 1)


def test_work_is_told_to_stop_at_the_end():
    began, stopped = threading.Event(), threading.Event()

    def work(over: Callable[[], bool]) -> None:
        began.set()
        while not over():
            time.sleep(0.001)
        stopped.set()

    with Beside[None]() as beside:
        beside.begin(work)
        assert began.wait(5.0)
        assert beside.busy
    assert stopped.is_set()


def test_what_the_work_raises_comes_out_where_it_is_taken():
    def work(over: Callable[[], bool]) -> int:
        raise LookupError("no such cell")

    with Beside[int]() as beside:
        beside.begin(work)
        while beside.busy:
            time.sleep(0.001)
        with pytest.raises(LookupError, match="no such cell"):
            beside.taken()
