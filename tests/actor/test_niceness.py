"""The owner's threads do not queue behind the workers that wait for them, where the system lets them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from gym_capture.actor.niceness import rank_as_ordinary
from gym_capture.actor.owner_thread import OwnerThread

_NICER = """
import asyncio, os
from gym_capture.actor.owner_thread import OwnerThread
from gym_capture.service.executor import ThreadExecutor

async def ranks():
    here = os.getpriority(os.PRIO_PROCESS, 0)
    return here, await ThreadExecutor("log").run(lambda: os.getpriority(os.PRIO_PROCESS, 0))

os.nice(7)
thread = OwnerThread()
print(os.getpriority(os.PRIO_PROCESS, 0), *thread.submit(ranks()).result())
thread.stop()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="takes the privilege to become less nice")
def test_the_owners_threads_rank_as_ordinary_in_a_process_that_was_made_nicer() -> None:
    """A process of its own, because being nice is not taken back. Its main thread (Ray's, there) stays as it was."""
    done = subprocess.run([sys.executable, "-c", _NICER], stdout=subprocess.PIPE, text=True, check=True, timeout=60)
    assert [int(each) for each in done.stdout.split()] == [min(19, 7 + os.getpriority(os.PRIO_PROCESS, 0)), 0, 0]


def test_without_the_privilege_the_owner_runs_as_it_was_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "setpriority", refused)
    monkeypatch.setattr(os, "getpriority", lambda *_: 15)
    assert not rank_as_ordinary()

    async def serving() -> bool:
        return True

    thread = OwnerThread()
    assert thread.submit(serving()).result(timeout=10)
    thread.stop()


def test_where_nobody_may_even_ask_the_owner_runs_as_it_was_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "getpriority", refused)
    assert not rank_as_ordinary()


def test_what_ranks_higher_already_stays_so(monkeypatch: pytest.MonkeyPatch) -> None:
    changed: list[tuple[int, ...]] = []
    monkeypatch.setattr(os, "setpriority", lambda *given: changed.append(given))
    monkeypatch.setattr(os, "getpriority", lambda *_: -5)
    assert rank_as_ordinary()
    assert not changed
