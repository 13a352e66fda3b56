"""The lab's hand in Ray's worker processes: fault points, a clock, detours and bugs, all by control files.

`install` is the worker process set-up hook of the lab's Ray jobs. It does nothing to an owner whose directory has no
control file beside it.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gym_capture.model.shards import run_actor_name
from gym_capture.storage.names import shards_in

HOOK = "tests.crash.lab.in_process.install"

CONTROL = "control.json"
"""Beside the capture directory. What is in force now; replaced by rename, read again whenever it has changed:

- `serial`: a number of its own for each one.
- `shard`: the owner whose fault points the next three are about; 0 if not given, which is the only one of most runs.
- `slow`: {fault point: seconds}
- `fail`: {fault point: errno}
- `kill`: {point, times, drop}: SIGKILL of the process that reaches the point for that time; `drop`: what was not synced
  is cut off before, as a host that fails forgets it.
- `wall_s`: how far the wall clock is off.
- `broken`: a bug that the process has from its start.
- `detour`: a port that connections of clients to the owner of `shard` go to instead.
- `bystander`: (name, namespace) of an actor that each worker process calls once, and that owns nothing.
"""


HISTORY_BYTES = 1 << 19
"""What a client of the lab remembers of conversations: so little that minutes fill it, and show whether it stays within
that. A user's client has 16 MiB.
"""

BROKEN: dict[str, tuple[str, ...]] = {
    "sync skipped": ("host forgets at a step of a write",),
    "claims not journaled": ("kill owner and worker",),
    "clears not journaled": ("kill owner after a clear",),
    "owner check skipped": ("second owner takes over from a frozen one",),
    "no dedupe after a restart": ("kill between sync and answer",),
    "duplicate counted as a second call": ("ray.cancel",),
    "answer before the sync": ("host forgets during a slow sync",),
}
"""Bugs that an owner can be given, and the faults that bring each to light."""


def run_and_shard(directory: str) -> tuple[str, int]:
    """The run's directory and the number of a shard that an owner has, from what it takes for its own directory."""
    path = Path(directory)
    shards = shards_in([path.name])
    return (str(path.parent), shards[0]) if shards else (directory, 0)


class Control:
    """The control file of one run.

    Args:
        directory: the run's capture directory.
    """

    def __init__(self, directory: str) -> None:
        self.path = Path(directory).parent / CONTROL
        self._seen = 0
        self._now: dict[str, Any] = {}

    def now(self) -> dict[str, Any]:
        """What is in force."""
        try:
            changed = os.stat(self.path).st_mtime_ns
            if changed != self._seen:
                self._now, self._seen = json.loads(self.path.read_text()), changed
        except FileNotFoundError:
            self._now = {}
        return self._now

    def fire_once(self, serial: int) -> bool:
        """True for the first process that asks about this control."""
        try:
            os.close(os.open(self.path.with_name(f"fired-{serial}"), os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True


class LabHook:
    """A fault hook that does what the control file says of its shard."""

    def __init__(self, control: Control, shard: int = 0) -> None:
        self._control = control
        self._shard = shard
        self._serial = -1
        self._reached = 0
        self._lock = threading.Lock()
        self.drop: Callable[[], None] = lambda: None

    def __call__(self, point: str) -> None:
        now = self._control.now()
        if not now or now.get("shard", 0) != self._shard:
            return
        pause = now.get("slow", {}).get(point)
        if pause:
            time.sleep(pause)
        number = now.get("fail", {}).get(point)
        if number:
            raise OSError(number, os.strerror(number))
        kill = now.get("kill")
        if kill and kill["point"] == point and self._is_time(now["serial"], kill["times"]):
            if kill.get("drop"):
                self.drop()
            os.kill(os.getpid(), signal.SIGKILL)

    def _is_time(self, serial: int, times: int) -> bool:
        with self._lock:
            if serial != self._serial:
                self._serial, self._reached = serial, 0
            self._reached += 1
            return self._reached == times and self._control.fire_once(serial)


_controls: list[Control] = []
"""Of the run that this process works for now, if any: the clock looks there."""


def work_for(directory: str) -> None:
    """This process works for that run now: detours, clock and bugs of clients are its."""
    if not _controls or _controls[0].path != Control(directory).path:
        _controls[:] = [Control(directory)]


def break_owner(name: str) -> None:
    """Give this process a bug, for good."""
    for target, attribute, value in broken(name):
        setattr(target, attribute, value)


def broken(name: str) -> list[tuple[Any, str, Any]]:
    """What to patch for a bug of that name (those of `tests.simulation.planted`, and the owner check's)."""
    from gym_capture.service.owned_log import OwnedLog
    from tests.simulation.planted import PLANTED

    if name == "owner check skipped":

        def commit(self: OwnedLog, frames: Sequence[Any]) -> None:
            self.writer.append(frames)
            self.writer.sync()

        def beat(self: OwnedLog) -> None:
            self.ownership.beat()

        return [(OwnedLog, "commit", commit), (OwnedLog, "check", _nothing), (OwnedLog, "beat", beat)]
    return PLANTED[name]()


def _nothing(*_: Any, **__: Any) -> None:
    return None


def install() -> None:
    """Ray calls this first in every worker process of the lab's jobs."""
    from gym_capture.actor import owner as owner_module
    from gym_capture.client import core as client_core
    from gym_capture.client.history_book import HistoryBook
    from gym_capture.model.clock import SystemClock
    from gym_capture.reach.locators import ActorLocator, DirectoryLocator
    from tests.crash.lab.held_memory import tell_what_is_held
    from tests.crash.lab.lab_files import LabFiles

    def lab_files(directory: str) -> LabFiles:
        run, shard = run_and_shard(directory)
        if not _controls and bystander_of(run):
            tell_what_is_held(run)
        work_for(run)
        name = _controls[0].now().get("broken")
        if name:
            break_owner(name)
        return LabFiles(directory, LabHook(Control(run), shard))

    setattr(client_core, "HistoryBook", functools.partial(HistoryBook, HISTORY_BYTES))  # noqa: B010 - as below
    setattr(owner_module, "PosixFiles", lab_files)  # noqa: B010 - the name is imported there, not exported
    SystemClock.time = _lab_time  # type: ignore[method-assign]
    _divert(DirectoryLocator, lambda locator: run_and_shard(locator._directory)[1])
    _divert(ActorLocator, lambda locator: shard_of_actor(locator._name))


def _lab_time(self: Any) -> float:
    return time.time() + (_controls[0].now().get("wall_s", 0.0) if _controls else 0.0)


def bystander_of(directory: str) -> tuple[str, str] | None:
    """The bystander of a run, if it has one."""
    found = Control(directory).now().get("bystander")
    return (found[0], found[1]) if found else None


def shard_of_actor(name: str) -> int:
    """The number of the shard that the actor of that name has."""
    return int(name.rpartition("-")[2]) if run_actor_name(name) != name else 0


def _divert(locator: Any, shard_of_its: Callable[[Any], int]) -> None:
    locate = locator.locate

    async def diverted(self: Any) -> Any:
        import msgspec

        endpoint = await locate(self)
        now = _controls[0].now() if _controls else {}
        port = now.get("detour") if shard_of_its(self) == now.get("shard", 0) else None
        return msgspec.structs.replace(endpoint, host="127.0.0.1", port=port) if port else endpoint

    locator.locate = diverted
