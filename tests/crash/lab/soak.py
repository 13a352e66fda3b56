"""`python -m tests.crash.lab.soak`: a long run, one fault after the other, and everything equal in the end.

The same cluster, load, faults and checker as the lab's runs, on one capture directory. Faults come in an order drawn
from the seed; in the last third of the time only those that leave the owner's process alive, so that its memory shows.
Rollout ids are used again and again: each `clear` forgets what an id captured before, so that what the owner has to
know is bounded, and whatever grows is a leak. At the end everything is healed. Exit status 1 when anything is violated,
any count disagrees, or memory, descriptors or threads of a process grow.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import ray

import gym_capture
from gym_capture.model.ledger import Ledger
from gym_capture.storage.log_scan import replay_log, scan_log
from gym_capture.storage.posix_files import PosixFiles
from gym_capture.storage.store import CaptureStore
from tests.crash.lab.accounts import accounts
from tests.crash.lab.checker import Violation, check
from tests.crash.lab.cluster import CALM_HEALTH_CHECKS, LabCluster
from tests.crash.lab.collector import Collector
from tests.crash.lab.faults import FAULTS, NODE_FAULTS
from tests.crash.lab.held_memory import held_by
from tests.crash.lab.network import DisturbedPath
from tests.crash.lab.plan import Plan
from tests.crash.lab.process_series import look_at
from tests.crash.lab.rest import come_to_rest, read_stored
from tests.crash.lab.run import driver_of
from tests.crash.lab.scene import HEAL_S, Scene
from tests.crash.lab.soak_report import Soaked, markdown
from tests.crash.lab.workers import actor_on, bystander_on
from tests.crash.processes import Child

FOLLOWABLE = tuple(name for name in FAULTS if name != "two drivers race to start")
"""All that can happen to a run that is under way."""

TAKEOVER = "second owner takes over from a frozen one"

KEEPS_OWNER = (
    "freeze owner",
    "kill worker task",
    "kill worker actor",
    "freeze worker task",
    "freeze worker past its lease",
    "connections cut",
    "connections delayed",
    "connections half-open",
    "ray.cancel",
    "object-store pressure",
    "sync slow by 10 ms",
    "sync slow by 1 s",
    "EIO on write",
    "EIO on sync",
    "ENOSPC on write",
    "EIO on rename",
)
"""Those that leave the owner's process alive."""

LOOK_S = 5.0
PAUSE_S = (1.0, 4.0)


def in_turn(names: Sequence[str], draw: random.Random) -> Iterator[str]:
    """All of them in a drawn order, again and again, each time in another."""
    while True:
        yield from draw.sample(list(names), len(names))


def plan_of(seed: int) -> Plan:
    """The soak's load."""
    return Plan(
        seed=seed,
        fault="soak",
        transport="stream",  # connections are disturbed, and the owner's name is another one after a takeover
        collectors=5,
        calls=8,
        lease_s=4.0,
        segment_bytes=1 << 20,
        warm_s=0.0,
        ids=4,
    )


def say(line: str) -> None:
    """Print it now."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


class Soak:
    """One soak, on a cluster of its own.

    Args:
        folder: empty, for the run's files.
        seed, minutes: which, and for how long.
        faults: names; in the last third of the time those of them that keep the owner.
    """

    def __init__(self, folder: Path, seed: int, minutes: float, faults: Sequence[str]) -> None:
        self._plan = plan_of(seed)
        self._cluster = LabCluster(system_config=CALM_HEALTH_CHECKS)
        self._scene = Scene(self._plan, self._cluster, folder)
        self._actors: dict[str, Any] = {}
        self._bystander: Any = None
        self._seconds = minutes * 60.0
        self._faults = faults
        self._drivers: dict[str, Child] = {}
        self._began = 0.0
        self.soaked = Soaked(seed, minutes)

    async def run(self) -> Soaked:
        """All of it. What does not come to its end is a violation too."""
        scene = self._scene
        scene.path = DisturbedPath(scene.where_the_owner_listens)
        scene.control(detour=scene.path.port)
        self._began = time.monotonic()
        looking = None
        try:
            await self._begin()
            self._began = time.monotonic()
            looking = asyncio.ensure_future(self._look())
            try:
                await self._disturb()
            except AssertionError as error:
                self._wrong("run did not recover", error)
            looking.cancel()  # what is ended below is no longer what it was
            await self._end()
        except Exception as error:  # noqa: BLE001 - whatever keeps it from its end is a finding
            self._wrong("run did not end", error)
        finally:
            if looking is not None:
                looking.cancel()
            for driver in self._drivers.values():
                driver.end()
            if self._bystander is not None:
                ray.kill(self._bystander, no_restart=True)
            await scene.close()
        return self.soaked

    def close(self) -> None:
        """End the cluster."""
        self._cluster.close()

    def _wrong(self, kind: str, error: Exception) -> None:
        self.soaked.violations.append(Violation(kind, repr(error)[:500]))

    # -- load ---------------------------------------------------------------------------------------------------

    async def _begin(self) -> None:
        scene = self._scene
        for node in self._cluster.nodes():
            self._actors[node] = actor_on(node)
        scene.actors = list(self._actors.values())
        name = f"bystander-of-{scene.folder.name}"
        scene.directory.mkdir(exist_ok=True)
        self._bystander = bystander_on(self._cluster.nodes()[0], name, str(scene.directory))
        await self._bystander.hear.remote(0)
        scene.control(bystander=(name, ray.get_runtime_context().namespace))
        scene.capture = await asyncio.to_thread(gym_capture.start, scene.config())
        scene.lose_driver = self._lose_driver
        for name in ("b", "lasting"):
            self._drivers[name] = driver_of(scene, name)
        for driver in self._drivers.values():
            assert (await asyncio.to_thread(driver.hear, HEAL_S))["ready"]
        scene.collector = Collector(self._plan, scene.capture, str(scene.directory), scene.journal, scene.actors, "a")
        self._collecting = asyncio.ensure_future(scene.collector.run())
        await scene.until(lambda: scene.acknowledged_after(self._began), "a first write")

    async def _lose_driver(self) -> None:
        self._drivers.pop("b").end()
        self._drivers["b"] = driver_of(self._scene, "b")
        assert (await asyncio.to_thread(self._drivers["b"].hear, HEAL_S))["ready"]

    async def _end(self) -> None:
        scene, soaked = self._scene, self.soaked
        self._heal()
        assert scene.collector is not None
        scene.collector.stopping.set()
        for driver in self._drivers.values():
            driver.say("stop")
        await asyncio.wait_for(self._collecting, HEAL_S)
        for driver in self._drivers.values():
            assert (await asyncio.to_thread(driver.hear, HEAL_S))["done"]
        stats = await come_to_rest(scene.capture, scene.collector, scene.directory)
        await scene.capture.stop()
        soaked.seconds = time.monotonic() - self._began
        history = scene.history()
        stored = read_stored(scene.directory, history)
        ledger = Ledger()
        replay_log(scan_log(PosixFiles(scene.directory)), ledger)
        verified = CaptureStore(scene.directory).verify()
        soaked.violations += check(history, stored, silence_s=self._plan.lease_s / 2)
        soaked.accounts = accounts(history, stored, stats, ledger.counts)
        soaked.violations += [
            Violation("counts disagree", f"{each.what}: {each.one} and {each.other}")
            for each in soaked.accounts
            if not each.agrees
        ]
        if not verified.sound:
            soaked.violations.append(Violation("verify says damaged", repr(verified)[:500]))
        soaked.owner = stats
        soaked.acknowledged = len(history.acknowledged())
        soaked.merges, soaked.quiets = len(history.merges), len(history.quiets)
        soaked.generations = sum(clear.generation is not None for clear in history.clears)

    # -- faults -------------------------------------------------------------------------------------------------

    async def _disturb(self) -> None:
        draw = self._plan.random("order")
        kept = [name for name in self._faults if name in KEEPS_OWNER] or self._faults
        every, keeping = in_turn(self._faults, draw), in_turn(kept, draw)
        while (now := time.monotonic() - self._began) < self._seconds:
            await self._one(next(every if now < self._seconds * 2 / 3 else keeping))
            await asyncio.sleep(draw.uniform(*PAUSE_S))

    async def _one(self, name: str) -> None:
        """One fault, until writes are acknowledged again and what it cost is replaced."""
        scene = self._scene
        history = scene.history()
        faults, acks, start = len(history.faults), len(history.acks), time.monotonic()
        if name == "fork in a worker":
            assert scene.collector is not None
            scene.collector.fork = True
            await asyncio.sleep(3.0)
        await FAULTS[name](scene)
        over = time.monotonic()
        await scene.until(lambda: scene.acknowledged_after(over, acks), f"a write after {name}")
        at = next(iter(scene.history().faults[faults:]), (start, ""))[0]
        recovered = scene.acknowledged_after(at, acks)
        assert recovered is not None
        self.soaked.faults.append((name, recovered))
        say(f"{time.strftime('%H:%M:%S')} {at - self._began:7.1f} s {name}: recovered in {recovered:.2f} s")
        await self._repair(name, start)

    async def _repair(self, name: str, start: float) -> None:
        scene = self._scene
        self._heal()
        if name == "connections half-open":
            # Who was silent all the while notices a lease later at the latest.
            await asyncio.sleep(self._plan.lease_s)
            scene.journal.note("cut-off", start)
        elif name == TAKEOVER:
            await scene.end_owners(but=scene.owner_name())
        elif name in NODE_FAULTS:
            await scene.until(lambda: self._cluster.lost() > 0, "the node is gone")
            self._cluster.replace_lost()
            for node in set(self._actors) - set(self._cluster.nodes()):
                scene.actors.remove(self._actors.pop(node))
            for node in set(self._cluster.nodes()) - set(self._actors):
                self._actors[node] = actor_on(node)
                scene.actors.append(self._actors[node])

    def _heal(self) -> None:
        scene = self._scene
        scene.thaw()
        scene.control(fail={}, slow={}, kill=None, wall_s=0.0)
        if scene.collector is not None:
            scene.collector.fork = False
        if scene.path is not None:
            scene.path.delay_s, scene.path.swallow, scene.path.cut_after = 0.0, False, None

    # -- what processes hold ------------------------------------------------------------------------------------

    async def _look(self) -> None:
        scene, soaked = self._scene, self.soaked
        while True:
            at = time.monotonic() - self._began
            history = scene.history()
            calls = len(history.acks)
            processes = {"owner": scene.owner_pid(), "lasting driver": self._drivers["lasting"].process.pid}
            if "b" in self._drivers:
                processes["second driver"] = self._drivers["b"].process.pid
            for holder, (pid, kind) in history.processes.items():
                if kind == "actor" and history.pulses[holder][-1] > time.monotonic() - 1.0:
                    processes[f"worker actor {pid}"] = pid
            try:
                processes["bystander"] = await asyncio.wait_for(self._bystander.hear.remote(0), 1.0)
            except (TimeoutError, ray.exceptions.RayError):
                pass  # its node is frozen or lost
            looks = [look_at(pid, role, at, calls, held_by(scene.directory, pid)) for role, pid in processes.items()]
            soaked.samples += [sample for sample in looks if sample is not None]
            soaked.sizes.append(
                (at, sum(path.stat().st_size for path in scene.directory.glob("*") if path.is_file()), calls)
            )
            await asyncio.sleep(LOOK_S)


def main() -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash.lab.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0, help="how long faults go on")
    parser.add_argument("--seed", type=int, default=1, help="what the order of faults is drawn from")
    parser.add_argument(
        "--faults", default="", help="names, separated by commas; all that can follow each other if not"
    )
    parser.add_argument("--json", type=Path, help="write everything there")
    parser.add_argument("--keep", type=Path, help="leave the run's folder there when anything is wrong")
    given = parser.parse_args()
    faults = [name.strip() for name in given.faults.split(",") if name.strip()] or list(FOLLOWABLE)
    unknown = [name for name in faults if name not in FOLLOWABLE]
    if unknown:
        parser.error(f"no fault {unknown[0]!r} that can follow others")
    logging.getLogger("gym_capture").setLevel(logging.CRITICAL)
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    soak = Soak(folder, given.seed, given.minutes, faults)
    for ending in (signal.SIGINT, signal.SIGTERM):  # after Ray has set its own
        signal.signal(ending, signal.default_int_handler)
    try:
        soaked = asyncio.run(soak.run())
    finally:
        soak.close()
    say(markdown(soaked))
    wrong = soaked.wrong()
    if given.json:
        given.json.write_text(json.dumps(soaked.shown(), indent=1, default=str))
    if wrong and given.keep:
        shutil.copytree(folder, given.keep / folder.name)
    shutil.rmtree(folder, ignore_errors=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
