"""Several worker processes under load, their registers, probes of quiescence, and the final count."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import gym_capture
from gym_capture.errors import GymCaptureError
from tests.crash.processes import Child
from tests.crash.register import Told, read_registers


class Probe(NamedTuple):
    """One question for quiescence that was answered with yes: of which rollout, and from when to when."""

    rollout: str | None
    start: float
    end: float


class Load:
    """Worker processes that claim and commit until `finish`.

    Args:
        directory: the capture directory; an owner serves it.
        registers: a directory for the workers' registers.
        workers, tasks: how many processes, and concurrent calls in each.
        port: see `load_worker`.
    """

    def __init__(
        self, directory: Path, registers: Path, *, workers: int, tasks: int, seed: int, port: int | None = None
    ) -> None:
        registers.mkdir()
        self.directory = directory
        self.paths = [registers / f"worker-{number}.jsonl" for number in range(workers)]
        detour = [] if port is None else [str(port)]
        self.children = [
            Child(
                "tests.crash.load_worker",
                str(directory),
                str(path),
                str(number),
                str(tasks),
                str(seed + number),
                *detour,
            )
            for number, path in enumerate(self.paths)
        ]
        for child in self.children:
            assert child.line() == "ready"

    def told(self) -> Told:
        """What the registers say now."""
        return read_registers([path for path in self.paths if path.exists()])

    def acknowledged(self) -> int:
        """How many calls their callers know to be durable."""
        return sum(path.read_bytes().count(b'["told"') for path in self.paths if path.exists())

    def finish(self) -> int:
        """Let the workers end by themselves; returns how many calls they made."""
        for child in self.children:
            child.say("stop")
        return sum(child.hear(120.0)["made"] for child in self.children)

    def end(self) -> None:
        """Kill what is left."""
        for child in self.children:
            child.end()


class Prober(threading.Thread):
    """Asks for quiescence of rollouts that are being written, and of the run, and keeps the answers that were yes."""

    def __init__(self, capture: gym_capture.CaptureClient, paths: list[Path], seed: int) -> None:
        super().__init__(daemon=True)
        self._capture = capture
        self._paths = paths
        self._rng = random.Random(seed)
        self._finished = threading.Event()
        self.asked = 0
        self.yes: list[Probe] = []

    def run(self) -> None:
        while not self._finished.wait(0.002):
            rollout = self._rng.choice([self._busy_rollout(), self._busy_rollout(), None])
            start = time.monotonic()
            self.asked += 1
            try:
                if self._capture.sync.quiesce(rollout, timeout_s=0.05 if rollout else 0.01):
                    self.yes.append(Probe(rollout, start, time.monotonic()))
            except GymCaptureError:
                pass  # the owner is being killed all the time; no answer is no wrong answer

    def _busy_rollout(self) -> str | None:
        """A rollout that some worker has just claimed for."""
        path = self._rng.choice(self._paths)
        if not path.exists():
            return None
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 4096))
            lines = [line for line in file.read().split(b"\n")[1:-1] if line.startswith(b'["claimed"')]
        return str(json.loads(self._rng.choice(lines))[2]) if lines else None

    def finish(self) -> None:
        """Stop asking."""
        self._finished.set()
        self.join(60)


def count_in_fresh_process(directory: Path) -> dict[str, list[list[str]]]:
    """[model_call_id, digest] of every exchange on disk by rollout, as a process that knows nothing else reads them."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.crash.count_directory", str(directory)],
        capture_output=True,
        timeout=120,
        check=True,
    )
    return {rollout: found["calls"] for rollout, found in json.loads(done.stdout).items()}


def check_promises(directory: Path, told: Told, probes: list[Probe]) -> int:
    """The promises of the contract, against what every worker was told. Returns how many exchanges are on disk."""
    on_disk = count_in_fresh_process(directory)
    stored = {call_id: (rollout, digest) for rollout, calls in on_disk.items() for call_id, digest in calls}
    times = Counter(call_id for calls in on_disk.values() for call_id, _ in calls)
    assert not told.errors, f"callers saw errors: {told.errors[:3]}"
    assert [call_id for call_id, count in times.items() if count > 1] == []
    durable = told.durable()
    assert [call_id for call_id in durable if call_id not in stored] == []
    assert [call_id for call_id, call in durable.items() if stored[call_id] != (call.rollout, call.digest)] == []
    early = [(probe, told.open_throughout(probe.rollout, probe.start, probe.end)) for probe in probes]
    assert [found for found in early if found[1]] == []
    return len(stored)
