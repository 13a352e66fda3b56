"""Work aside from loops: who waits for it, what a forked child has of it, and the end of the interpreter."""

from __future__ import annotations

import asyncio
import threading

import pytest

from gym_capture.client import work_aside
from gym_capture.client.blocking_mode import run_blocking
from gym_capture.client.work_aside import run_aside, work_done


class Host:
    """Whose work it is."""


@pytest.mark.parametrize("blocking", [False, True])
def test_a_hosts_end_waits_for_its_own_work_and_no_other(blocking: bool) -> None:
    def end(host: Host, timeout_s: float) -> None:
        if blocking:
            run_blocking(work_done(host, timeout_s))
        else:
            asyncio.run(work_done(host, timeout_s))

    mine, other = Host(), Host()
    gate, done = threading.Event(), threading.Event()
    run_aside(mine, lambda: done.set() if gate.wait(30) else None)
    end(other, 30.0)
    end(mine, 0.01)
    assert not done.is_set()
    threading.Timer(0.01, gate.set).start()
    end(mine, 30.0)
    assert done.is_set()


def test_a_forked_child_has_threads_of_its_own() -> None:
    run_aside(Host(), lambda: None).result(30)
    before = work_aside._aside
    try:
        work_aside._after_fork()
        assert work_aside._aside is not before
        thread: list[str] = []
        run_aside(Host(), lambda: thread.append(threading.current_thread().name)).result(30)
        assert thread[0].startswith("gym_capture-aside")
    finally:
        work_aside._aside = before


def test_where_no_thread_starts_any_more_it_is_done_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(work: object) -> None:
        raise RuntimeError("cannot schedule new futures after interpreter shutdown")

    monkeypatch.setattr(work_aside._aside, "submit", refuse)
    thread: list[bool] = []
    future = run_aside(Host(), lambda: thread.append(threading.current_thread() is threading.main_thread()))
    assert (future.done(), thread) == (True, [True])
