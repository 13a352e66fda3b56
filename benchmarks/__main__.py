"""What capture costs, side by side with the plain thing. `targets`: everything that has a target, beside a file store,
in less than ten minutes, with one table in the end; `store`: the log beside a file store over both transports, in about
two; `server`: capture at a model server beside the bare server, in about five; `call`: what one captured call takes of
its client and of the owner, in half a minute; `reading`: what it takes to look at 200,000 calls, in about two minutes;
`history`: what storing messages once saves, in one; `sealed`: a sealed dataset beside JSONL, in a few. No figure
fails the run, a lost call does."""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

import gym_capture
from benchmarks.call import CallBench
from benchmarks.cases import Bench
from benchmarks.conditions import Conditions
from benchmarks.history import compare_history, history_workloads
from benchmarks.reading import reading_costs
from benchmarks.sealed import seal_and_read, sealing_ahead_cost, sealing_cost
from benchmarks.server_overhead import ServerBench, workloads
from benchmarks.target_run import Scale, measure, targets
from benchmarks.targets import HEAD, Line, lines, markdown, number

KB = 1024

REAL_ROLLOUTS = Path(__file__).resolve().parents[2] / "shared" / "cases" / "real_rollouts.jsonl"
"""Real rollouts, where a checkout lies beside the shared cases; the project ships none."""


def main() -> None:
    """Run the cases and print a table each."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "what",
        nargs="?",
        choices=("targets", "store", "server", "call", "reading", "history", "sealed"),
        default="targets",
        help="every target, the log, a server, one call, looking, messages stored once, or sealing",
    )
    parser.add_argument("--directory", type=Path, help="where to write (default: a temporary directory, removed after)")
    parser.add_argument("--workers", type=int, help="Ray workers (targets: 16, and 32 on one rollout; store: 4)")
    parser.add_argument("--in-flight", type=int, help="calls in flight (64 in each worker; server: 256)")
    parser.add_argument("--seconds", type=float, help="length of one loaded run (targets, server: 1; store: 0.6)")
    parser.add_argument("--repeats", type=int, help="loaded runs of each, in turn (targets, server: 3; store: 2)")
    parser.add_argument("--short", action="store_true", help="server: only the plainest workloads")
    parser.add_argument("--only", default="", help="server: only workloads whose title has this in it")
    parser.add_argument(
        "--calls", type=int, help="call: one after the other, 8 times that in flight (400); reading: in all (200,000)"
    )
    parser.add_argument(
        "--rollouts",
        type=Path,
        help="targets, history: also these (JSONL, `exchanges` of a rollout a line; targets: those of the cases, where "
        "they are)",
    )
    parser.add_argument("--seal", action="store_true", help="reading: seal the run, and look at it again")
    parser.add_argument("--sealed-calls", type=int, default=200_000, help="sealed: calls in the dataset")
    parser.add_argument("--turns", type=int, default=100, help="sealed: calls of one rollout")
    parser.add_argument("--request-bytes", type=int, default=400_000, help="sealed: bytes of one rollout's requests")
    parser.add_argument("--callers", type=int, help="callers parked in quiesce (targets: 10,000; store: 5,000)")
    parser.add_argument("--clients", type=int, default=64, help="slow client processes")
    parser.add_argument("--json", type=Path, help="also write all figures here")
    parser.add_argument("--markdown", type=Path, help="targets: also write the table here, ready for a document")
    options = parser.parse_args()

    base = Path(tempfile.mkdtemp(prefix="gym-capture-bench-", dir=options.directory)).resolve()
    console = Console(width=170)
    conditions = Conditions(base)
    figures: dict[str, dict[str, dict[str, float]]] = {}

    def show(title: str, rows: dict[str, dict[str, float]]) -> None:
        figures.setdefault(title, {}).update(rows)
        console.print(_table(title, rows))

    try:
        runs = {
            "targets": _targets,
            "store": _store,
            "server": _server,
            "call": _call,
            "reading": _reading,
            "history": _history,
            "sealed": _sealed,
        }
        runs[options.what](base, options, show)
        told = conditions.at_end()
        reached = lines(figures, targets()) if options.what == "targets" else []
        if reached:
            _show_lines(console, reached)
            told = {"scale": str(_scale(options)), **told}
            text = markdown(reached, told)
            print(f"\n{text}")
            if options.markdown:
                options.markdown.write_text(text, encoding="utf-8")
        console.print(", ".join(f"{name} {value}" for name, value in told.items()))
        if options.json:
            table = [dataclasses.asdict(line) for line in reached]
            options.json.write_text(json.dumps({"conditions": told, "figures": figures, "targets": table}, indent=1))
    finally:
        shutil.rmtree(base)


Show = Callable[[str, dict[str, dict[str, float]]], None]


def _targets(base: Path, options: argparse.Namespace, show: Show) -> None:
    scale = _scale(options)
    if scale.real_rollouts is None:
        print(f"{options.rollouts or REAL_ROLLOUTS} is not there: the workload of real rollouts is skipped")
    measure(base, scale, show)


def _scale(options: argparse.Namespace) -> Scale:
    real = options.rollouts or REAL_ROLLOUTS
    given = {
        "workers": options.workers,
        "in_flight": options.in_flight,
        "seconds": options.seconds,
        "repeats": options.repeats,
        "clients": options.clients,
        "callers": options.callers,
        "real_rollouts": real if real.is_file() else None,
    }
    return Scale(**{name: value for name, value in given.items() if value is not None})


def _show_lines(console: Console, reached: list[Line]) -> None:
    table = Table(title="targets", title_justify="left")
    for name in HEAD:
        table.add_column(name)
    for line in reached:
        table.add_row(line.work, line.target, line.measured, line.met)
    console.print(table)


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
        workers, in_flight = options.workers or 4, options.in_flight or 64
        bench = Bench(ray, capture, base / "capture", base / "files", workers=workers, in_flight=in_flight)
        show("one call at a time, 4 KB (ms)", bench.unloaded(100))
        seconds, repeats = options.seconds or 0.6, options.repeats or 2
        for size in (4 * KB, 64 * KB, 512 * KB):
            title = f"{workers} workers x {in_flight} in flight, {size // KB} KB (per second; ms)"
            show(title, bench.throughput(size, seconds, repeats if size < 512 * KB else 1))
        show("merge of a growing rollout, 100 calls, 21 MB (ms)", bench.merge(100, 21_000_000, 5))
        callers = options.callers or 5000
        show(f"{callers} callers in quiesce: what commits feel (ms)", bench.waiters(callers, 0.7))
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
    directory, repeats = base / "capture", options.repeats or 3
    show(f"looking at {calls:,} calls, 10 a rollout", reading_costs(directory, calls, 10, 400, repeats))
    if options.seal:
        show("sealing that run", sealing_cost(directory))
        show("looking at it once it is sealed", reading_costs(directory, calls, 10, 400, repeats))


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
    return number(value)


def _sealed(base: Path, options: argparse.Namespace, show: Show) -> None:
    turns, request_bytes = options.turns, options.request_bytes
    title = f"a sealed dataset of rollouts of {turns} turns, {request_bytes / 1e6:.1f} MB of requests each"
    show(title, seal_and_read(base / "dataset", options.sealed_calls, turns, request_bytes))
    show(f"sealing 40 rollouts of {turns} turns ahead", sealing_ahead_cost(base, turns, request_bytes))


if __name__ == "__main__":
    main()
