"""What capture costs, side by side with the plain thing: `store`, the log beside a file store, in about two minutes;
`server`, capture at a model server beside the bare server, in about five; `call`, what one captured call takes of its
client and of the owner, in half a minute; `reading`, what it takes to look at 200,000 calls, in about two minutes;
`history`, what storing messages once saves, in one. No figure fails the run, a lost call does."""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import gym_capture
from benchmarks.call import CallBench
from benchmarks.cases import Bench
from benchmarks.history import compare_history, history_workloads
from benchmarks.reading import reading_costs
from benchmarks.server_overhead import ServerBench, workloads

KB = 1024


def main() -> None:
    """Run the cases and print a table each."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "what",
        nargs="?",
        choices=("store", "server", "call", "reading", "history"),
        default="store",
        help="the log, a server, one call, looking, or messages stored once",
    )
    parser.add_argument("--directory", type=Path, help="where to write (default: a temporary directory, removed after)")
    parser.add_argument("--workers", type=int, default=4, help="Ray workers")
    parser.add_argument("--in-flight", type=int, help="calls in flight (store, call: 64 in each worker; server: 256)")
    parser.add_argument("--seconds", type=float, help="length of one loaded run (store: 0.6; server: 1)")
    parser.add_argument("--repeats", type=int, help="loaded runs of each contestant, in turn (store: 2; server: 3)")
    parser.add_argument("--short", action="store_true", help="server: only the plainest workloads")
    parser.add_argument("--only", default="", help="server: only workloads whose title has this in it")
    parser.add_argument(
        "--calls", type=int, help="call: one after the other, 8 times that in flight (400); reading: in all (200,000)"
    )
    parser.add_argument("--rollouts", type=Path, help="history: also these (JSONL, `exchanges` of a rollout a line)")
    parser.add_argument("--callers", type=int, default=5000, help="callers parked in quiesce")
    parser.add_argument("--clients", type=int, default=64, help="slow client processes")
    parser.add_argument("--json", type=Path, help="also write all figures here")
    options = parser.parse_args()

    base = Path(tempfile.mkdtemp(prefix="gym-capture-bench-", dir=options.directory)).resolve()
    console = Console(width=170)
    started = time.perf_counter()
    figures: dict[str, dict[str, dict[str, float]]] = {}

    def show(title: str, rows: dict[str, dict[str, float]]) -> None:
        figures[title] = rows
        console.print(_table(title, rows))

    try:
        runs = {"store": _store, "server": _server, "call": _call, "reading": _reading, "history": _history}
        runs[options.what](base, options, show)
        conditions = _conditions(time.perf_counter() - started)
        console.print(conditions)
        if options.json:
            options.json.write_text(json.dumps({"conditions": conditions, "figures": figures}, indent=1))
    finally:
        shutil.rmtree(base)


Show = Callable[[str, dict[str, dict[str, float]]], None]


def _store(base: Path, options: argparse.Namespace, show: Show) -> None:
    import ray

    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, address="local", logging_level=logging.ERROR)
    capture = gym_capture.start(
        {
            "model_call_capture_dir": str(base / "capture"),
            "capture": {"namespace": "benchmarks", "endpoint": {"host": "127.0.0.1"}},
        }
    )
    try:
        workers, in_flight = options.workers, options.in_flight or 64
        bench = Bench(ray, capture, base / "capture", base / "files", workers=workers, in_flight=in_flight)
        show("one call at a time, 4 KB (ms)", bench.unloaded(100))
        seconds, repeats = options.seconds or 0.6, options.repeats or 2
        for size in (4 * KB, 64 * KB, 512 * KB):
            title = f"{workers} workers x {in_flight} in flight, {size // KB} KB (per second; ms)"
            show(title, bench.throughput(size, seconds, repeats if size < 512 * KB else 1))
        show("merge of a growing rollout, 100 calls, 21 MB (ms)", bench.merge(100, 21_000_000, 5))
        show(f"{options.callers} callers in quiesce: what commits feel (ms)", bench.waiters(options.callers, 0.7))
        show(f"{options.clients} slow clients (per second; ms)", bench.slow_clients(options.clients, 2))
        show("read back from disk", bench.read_back())
        bench.close()
    finally:
        capture.sync.stop()
        # First: a client that still looks for its owner while Ray goes away makes Ray start anew.
        capture.sync.close()
        ray.shutdown()


def _server(base: Path, options: argparse.Namespace, show: Show) -> None:
    bench = ServerBench(base / "capture")
    try:
        bench.open()
        for workload in workloads(options.seconds or 1.0, options.in_flight or 256, short=options.short):
            if options.only in workload.title:
                show(f"{workload.title} (ms; + more than bare)", bench.run(workload, options.repeats or 3))
    finally:
        bench.close()
    show("read back from disk", bench.read_back())


def _call(base: Path, options: argparse.Namespace, show: Show) -> None:
    bench = CallBench(base / "capture")
    with bench.running():
        for _ in range(options.repeats or 2):
            show("one call, 4 KB (ms)", bench.run(4 * KB, options.calls or 400, 16, options.in_flight or 64))


def _reading(base: Path, options: argparse.Namespace, show: Show) -> None:
    calls = options.calls or 200_000
    show(
        f"looking at {calls:,} calls, 10 a rollout",
        reading_costs(base / "capture", calls, 10, 400, options.repeats or 3),
    )


def _history(base: Path, options: argparse.Namespace, show: Show) -> None:
    for title, rollouts in history_workloads(options.rollouts).items():
        show(title, compare_history(base, rollouts, options.repeats or 5))


def _table(title: str, rows: dict[str, dict[str, float]]) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("")
    columns = list(dict.fromkeys(key for row in rows.values() for key in row))
    for column in columns:
        table.add_column(column, justify="right")
    for name, row in rows.items():
        table.add_row(name, *(_number(row.get(column)) for column in columns))
    return table


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


def _conditions(seconds: float) -> str:
    import ray

    info: dict[str, Any] = {
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "ray": ray.__version__,
        "gym_capture": gym_capture.__version__,
        "load average at the end": os.getloadavg()[0],
        "whole run": f"{seconds:.0f} s",
    }
    return ", ".join(f"{key} {value}" for key, value in info.items())


if __name__ == "__main__":
    main()
