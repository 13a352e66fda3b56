"""One run from its plan: load, fault, recovery, rest, and the judgement."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray

import gym_capture
from tests.crash.lab.checker import Violation, check, lost_in
from tests.crash.lab.cluster import LabCluster
from tests.crash.lab.collector import Collector
from tests.crash.lab.faults import FAULTS, NODE_FAULTS
from tests.crash.lab.network import DisturbedPath
from tests.crash.lab.plan import Plan
from tests.crash.lab.rest import come_to_rest, read_stored
from tests.crash.lab.scene import HEAL_S, Scene
from tests.crash.lab.workers import actor_on
from tests.crash.processes import Child

AFTER_S = 0.7
"""The load goes on for so long after it has recovered."""


@dataclass
class Result:
    """What came of one run."""

    plan: Plan
    acknowledged: int = 0
    recovered_s: float | None = None
    violations: list[Violation] = field(default_factory=list)
    what: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    def shown(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "seed": self.plan.seed,
            "fault": self.plan.fault,
            "broken": self.plan.broken,
            "acknowledged": self.acknowledged,
            "recovered_s": None if self.recovered_s is None else round(self.recovered_s, 3),
            "violations": [list(each) for each in self.violations],
            "what": self.what,
            "counts": dict(sorted(self.counts.items())),
            "seconds": round(self.seconds, 1),
            "transport": self.plan.transport,
            "shards": self.plan.shards,
            "history": self.plan.history,
        }


def driver_of(scene: Scene, name: str) -> Child:
    """A driver of its own that will work in the scene; it says when it is ready."""
    given = {**scene.plan.shown(), "config": scene.config()}
    return Child("tests.crash.lab.driver_process", scene.cluster.address, str(scene.directory), json.dumps(given), name)


class Lab:
    """Runs plans on one cluster, with worker actors that they share.

    Args:
        folder: where the runs' folders are made.
        nodes, system_config: the cluster's.
    """

    def __init__(self, folder: Path, nodes: int = 2, system_config: dict[str, Any] | None = None) -> None:
        self._folder = folder
        self._runs = 0
        self._cluster = LabCluster(nodes, system_config)
        self._actors: dict[str, Any] = {}

    def run(self, plan: Plan, *, keep: bool = False) -> Result:
        """One plan; its folder is removed unless something is wrong and `keep`."""
        began = time.monotonic()
        self._cluster.replace_lost()
        self._runs += 1
        folder = self._folder / f"{plan.seed}-{self._runs}"
        folder.mkdir()
        scene = Scene(plan, self._cluster, folder)
        scene.actors = self._workers()
        result = Result(plan)
        try:
            asyncio.run(_Run(scene, result).all())
        except Exception as error:  # noqa: BLE001 - a run that cannot be brought to its end is a finding of its own
            result.violations.append(Violation("run did not end", repr(error)[:500]))
        finally:
            asyncio.run(scene.close())
            result.seconds = time.monotonic() - began
        if not (keep and result.violations):
            shutil.rmtree(folder, ignore_errors=True)
        if plan.fault in NODE_FAULTS:
            for actor in self._actors.values():
                ray.kill(actor)
            self._actors.clear()
        return result

    def _workers(self) -> list[Any]:
        for node in self._cluster.nodes():
            if node not in self._actors:
                self._actors[node] = actor_on(node)
        return list(self._actors.values())

    def close(self) -> None:
        """End the cluster."""
        self._cluster.close()


class _Run:
    def __init__(self, scene: Scene, result: Result) -> None:
        self._scene = scene
        self._result = result
        self._plan = scene.plan
        self._drivers: list[Child] = []

    async def all(self) -> None:
        scene, plan = self._scene, self._plan
        scene.control(**({"broken": plan.broken} if plan.broken else {}))
        if plan.fault.startswith("connections"):
            scene.path = DisturbedPath(scene.where_the_owner_listens)
            scene.control(detour=scene.path.port)
        try:
            await self._begin()
            await self._load()
            await self._rest()
        finally:
            for driver in self._drivers:
                driver.end()
        self._judge()

    async def _begin(self) -> None:
        scene, plan = self._scene, self._plan
        if plan.fault in ("two drivers race to start", "driver killed and rejoined"):
            self._drivers = [self._driver("b"), *([self._driver("c")] if plan.fault.startswith("two") else [])]
        scene.capture = await asyncio.to_thread(gym_capture.start, scene.config())
        for driver in self._drivers:
            assert (await asyncio.to_thread(driver.hear, HEAL_S))["ready"]
        scene.lose_driver = self._lose_driver

    def _driver(self, name: str) -> Child:
        return driver_of(self._scene, name)

    async def _lose_driver(self) -> None:
        """Kill the second driver, workers and all, and let another go on with its rollouts."""
        self._drivers.pop().end()
        self._drivers.append(self._driver("b"))
        assert (await asyncio.to_thread(self._drivers[0].hear, HEAL_S))["ready"]

    async def _load(self) -> None:
        scene, plan = self._scene, self._plan
        collector = scene.collector = Collector(
            plan, scene.capture, str(scene.directory), scene.journal, scene.actors, "a"
        )
        running = asyncio.ensure_future(collector.run())
        try:
            start = time.monotonic()
            await scene.until(lambda: scene.acknowledged_after(start), "a first write")
            await asyncio.sleep(plan.warm_s)
            at = time.monotonic()
            await FAULTS[plan.fault](scene)
            await scene.until(lambda: scene.acknowledged_after(at), "a write after the fault")
            await asyncio.sleep(AFTER_S)
        finally:
            collector.stopping.set()
            for driver in self._drivers:
                driver.say("stop")
            await asyncio.wait_for(running, HEAL_S)
            for driver in self._drivers:
                assert (await asyncio.to_thread(driver.hear, HEAL_S))["done"]

    async def _rest(self) -> None:
        scene, collector = self._scene, self._scene.collector
        assert collector is not None
        stats = await come_to_rest(scene.capture, collector, scene.directory)
        self._result.counts.update(_counters(stats))
        await scene.capture.stop()

    def _judge(self) -> None:
        scene, result = self._scene, self._result
        history = scene.history()
        stored = read_stored(scene.directory, history)
        result.violations += check(history, stored, silence_s=self._plan.lease_s / 2)
        result.acknowledged = len(history.acknowledged())
        result.what = [what for _, what in history.faults]
        if history.faults:
            result.recovered_s = history.recovered_after(history.faults[0][0], of=scene.mine)
        result.counts["calls"] = len(history.calls)
        result.counts.update(f"calls of {history.processes[each.holder][1]}s" for each in history.calls.values())
        result.counts["quiet answers"] = len(history.quiets)
        result.counts["merges"] = len(history.merges)
        result.counts.update(f"outcome {call.outcome or 'untold'}" for call in history.calls.values())
        result.counts["lost, as merges said"] = sum(map(lost_in, history.merges))
        result.counts["lost claims"] = sum((each.reasons or {}).get("lost", 0) for each in stored.values())


def _counters(stats: dict[str, Any]) -> dict[str, int]:
    return {f"owner {name}": int(value) for name, value in stats["counts"].items()} | {
        "owner reopened": stats["reopened"]
    }
