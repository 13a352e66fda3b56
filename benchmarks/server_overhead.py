"""What capture at a model server costs: the same app bare, inside the middleware, and behind the proxy.

Every process is real and on loopback: the app without and with `CaptureMiddleware`, the proxy in front of the bare one,
the callers, the owner. The app does no work of its own, so all shares are larger than they would be beside a model.
"""

from __future__ import annotations

import itertools
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.http_load import Load, Seen
from benchmarks.measure import percentile
from benchmarks.model_server import events_of, response_of

PATH = "/v1/chat/completions"

BARE = "bare"
CONTESTANTS = (BARE, "middleware", "proxy", "proxy + capture")


@dataclass(frozen=True)
class Workload:
    """A kind of call, and how many at once.

    Args:
        title: for the table.
        query: what the app is asked for.
        size: bytes of its body.
        lanes: calls in flight.
        seconds: how long calls are begun in one run.
        calls: the most that a lane makes; 0: any number.
        ramp_s: over how long the lanes' first calls are spread.
    """

    title: str
    query: str
    size: int
    lanes: int
    seconds: float
    calls: int = 0
    ramp_s: float = 0.0


def workloads(seconds: float, lanes: int, *, short: bool) -> list[Workload]:
    """All of them; `short`: one call and one stream, alone and together."""
    found = []
    for size in (4096,) if short else (4096, 65536):
        body, name = len(response_of(size)), f"{size // 1024} KB"
        at_once, query = f"{name} at once", f"bytes={size}"
        found.append(Workload(f"{at_once}, 1 at a time", query, body, 1, seconds))
        found.append(Workload(f"{at_once}, {lanes} at a time", query, body, lanes, seconds))
        if not short:
            found.append(Workload(f"{name} after 50 ms, 1 at a time", f"{query}&wait=0.05", body, 1, seconds))
            slow = f"{name} after 1 s, {lanes} at a time"
            found.append(Workload(slow, f"{query}&wait=1", body, lanes, 9.0, 2, 1.0))
    for events in (64,) if short else (64, 500):
        body, name = sum(map(len, events_of(events))), f"{events} events"
        query = f"events={events}"
        found.append(Workload(f"{name} at once, 1 at a time", query, body, 1, seconds))
        found.append(Workload(f"{name} at once, {lanes} at a time", query, body, lanes, seconds))
        if not short:
            paced = f"{name} at 5 ms each, 1 at a time"
            found.append(Workload(paced, f"{query}&wait=0.005", body, 1, seconds * (2 if events > 64 else 1)))
    if not short:
        paced = f"64 events at 50 ms each, {lanes} at a time"
        body = sum(map(len, events_of(64)))
        found.append(Workload(paced, "events=64&wait=0.05", body, lanes, 0.0, 1, 1.0))
    return found


class ServerBench:
    """One run of the benchmark: all processes, from `open` to `close`.

    Args:
        directory: the capture directory, made anew.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._runs = itertools.count(1)
        self._stack = ExitStack()
        self.captured = 0

    def open(self) -> None:
        """Start the owner, the servers and the callers."""
        directory = str(self._directory)
        owner = self._stack.enter_context(_process("benchmarks.owner", directory))
        _hear(owner)
        bare = self._stack.enter_context(_process("benchmarks.model_server", "bare"))
        inside = self._stack.enter_context(_process("benchmarks.model_server", "captured", directory))
        ports = {name: int(_hear(process)["port"]) for name, process in ((BARE, bare), ("middleware", inside))}
        upstream = f"http://127.0.0.1:{ports[BARE]}"
        proxy = self._stack.enter_context(_process("benchmarks.model_server", "proxy", directory, upstream))
        ports["proxy"] = ports["proxy + capture"] = int(_hear(proxy)["port"])
        self._ports = ports
        self._callers = self._stack.enter_context(_process("benchmarks.http_load"))
        servers = dict.fromkeys(CONTESTANTS, bare.pid) | {"middleware": inside.pid}
        self._cpu_of = {
            name: {"server": servers[name], "proxy": proxy.pid, "owner": owner.pid, "callers": self._callers.pid}
            for name in CONTESTANTS
        }

    def close(self) -> None:
        """End all of them; what they captured is on disk then."""
        self._stack.close()

    def run(self, workload: Workload, repeats: int) -> dict[str, dict[str, float]]:
        """One workload, the contestants in turn, medians over the repeats. Milliseconds; `+`: more than bare."""
        rows: dict[str, list[dict[str, float]]] = {name: [] for name in CONTESTANTS}
        for repeat in range(repeats):
            turn = repeat % len(CONTESTANTS)
            order = CONTESTANTS[turn:] + CONTESTANTS[:turn]
            found = {name: self._measured(name, workload) for name in order}
            for name, row in found.items():
                for key in ("p50", "p99", "first", "late", "late_p99"):
                    row[f"+{key}"] = row[key] - found[BARE][key]
                row["rate/bare"] = row["per_s"] / found[BARE]["per_s"]
                rows[name].append(row)
        return {name: _chosen(each, streamed="events=" in workload.query) for name, each in rows.items()}

    def read_back(self) -> dict[str, dict[str, float]]:
        """What is on disk: every captured call, whole, of the same size as its kind."""
        from gym_capture.storage.store import CaptureStore

        store = CaptureStore(self._directory)
        read = whole = incomplete = 0
        for rollout_id in store.rollout_ids():
            incomplete += store.is_incomplete(rollout_id)
            for exchange in store.read(rollout_id):
                read += 1
                whole += exchange["error_category"] is None and exchange["response"]["choices"][0]["message"] != {}
        if not read == whole == self.captured or incomplete:
            raise SystemExit(f"LOST: {self.captured} calls, {read} on disk, {whole} whole, {incomplete} with gaps")
        return {"captured": {"answered": self.captured, "read": read, "whole": whole, "incomplete": incomplete}}

    def _measured(self, name: str, workload: Workload) -> dict[str, float]:
        pids = self._cpu_of[name]
        before = {part: _cpu_s(pid) for part, pid in pids.items()}
        seen = self._load(name, workload)
        calls = len(seen.total_ms)
        row = {
            "calls": float(calls),
            "per_s": calls / seen.seconds,
            "p50": percentile(seen.total_ms, 0.5),
            "p99": percentile(seen.total_ms, 0.99),
            "first": percentile(seen.first_ms, 0.5),
            "late": percentile(seen.late_ms, 0.5),
            "late_p99": percentile(seen.late_ms, 0.99),
        }
        return row | {f"cpu {part}": (_cpu_s(pid) - before[part]) * 1e3 / calls for part, pid in pids.items()}

    def _load(self, name: str, workload: Workload) -> Seen:
        captured = name in ("middleware", "proxy + capture")
        prefix = f"/ng-rollout/{next(self._runs)}-{{lane}}" if captured else ""
        load = Load(
            self._ports[name],
            prefix + PATH,
            workload.query,
            workload.size,
            workload.lanes,
            workload.seconds,
            workload.calls,
            workload.ramp_s,
        )
        process = self._callers
        assert process.stdin is not None
        process.stdin.write(json.dumps(asdict(load)).encode() + b"\n")
        process.stdin.flush()
        seen = Seen(**_hear(process))
        self.captured += seen.warm + len(seen.total_ms) if captured else 0
        return seen


def _chosen(rows: list[dict[str, float]], *, streamed: bool) -> dict[str, float]:
    columns = ["calls", "per_s", "rate/bare", "p50", "+p50", "p99", "+p99"]
    if streamed:
        columns += ["first", "+first", "late", "+late", "+late_p99"]
    columns += ["cpu server", "cpu proxy", "cpu owner", "cpu callers"]
    return {key: statistics.median(row[key] for row in rows) for key in columns}


def _cpu_s(pid: int) -> float:
    """The CPU time of another process, seconds, to the nanosecond (Linux: the clock that its id names)."""
    return time.clock_gettime((~pid << 3) | 2)


def _hear(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise SystemExit(f"{process.args!r} ended with {process.wait()}")
    heard: dict[str, Any] = json.loads(line)
    return heard


@contextmanager
def _process(module: str, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that serves until its input ends."""
    process = subprocess.Popen([sys.executable, "-m", module, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        yield process
        assert process.stdin is not None
        process.stdin.close()
        if process.wait(60) != 0:
            raise SystemExit(f"{process.args!r} ended with {process.returncode}")
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
