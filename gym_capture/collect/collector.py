"""A whole run: input, resume, Ray and the owner, workers, dispatch, summary."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gym_capture.asgi.proxy_upstream import parse_upstream
from gym_capture.collect.attempt import Attempt
from gym_capture.collect.binding import bind_output, check_output, holds_no_log
from gym_capture.collect.dispatch import Dispatcher
from gym_capture.collect.jsonl_file import DurableLines
from gym_capture.collect.pool import WorkerPool
from gym_capture.collect.proxies import ProxyFleet
from gym_capture.collect.resume import Resume, failures_path
from gym_capture.collect.rollout_function import load_rollout_function
from gym_capture.collect.rows import InputSpec, read_rows, scan_rows
from gym_capture.collect.stop import StopRequest
from gym_capture.collect.summary import Progress, Summary
from gym_capture.config import CaptureConfig
from gym_capture.errors import ConfigError, GymCaptureError, RolloutFunctionError
from gym_capture.extras import require_extra
from gym_capture.model.clock import Clock, SystemClock

if TYPE_CHECKING:
    from gym_capture.client.client import CaptureClient

logger = logging.getLogger(__name__)

STATS_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class RunPaths:
    """What a run reads and writes."""

    input: Path
    output: Path
    failures: Path
    rollout: str


async def collect(
    config: CaptureConfig,
    *,
    progress: Progress | None = None,
    stop: StopRequest | None = None,
    on_started: Callable[[], None] | None = None,
    clock: Clock | None = None,
) -> Summary:
    """Collect what `config.collect` names, or what is left of it. Runs in the driver.

    Ray and the owner are started (or joined) only when there is something left to do. An owner and a Ray that this
    call started are ended with it. Starting blocks the event loop for seconds.

    Args:
        config: the run's configuration.
        progress: counters to keep up to date.
        stop: asks for an early end.
        on_started: called once Ray has installed its own signal handlers and before anything is dispatched.
        clock: for times.

    Raises:
        ConfigError, RolloutFunctionError, InputRowError: before anything is started.
        OutputError, WorkersUnavailable, OwnerUnavailable, …: the run cannot go on; what is in the output stays, and
            the same call goes on from there.
    """
    progress = progress if progress is not None else Progress()
    stop = stop if stop is not None else StopRequest(config.collect.stop_grace_s)
    clock = clock if clock is not None else SystemClock()
    paths = _checked(config)
    spec = InputSpec(paths.input, config.collect.repeats, config.collect.limit)
    keys = scan_rows(spec)
    if config.observability_enabled:
        check_output(config.directory, paths.output)
    async with AsyncExitStack() as stack:
        resume = Resume()
        output = DurableLines(paths.output, resume.read_finished)
        stack.push_async_callback(output.close)
        failures = DurableLines(paths.failures, resume.read_failure)
        stack.push_async_callback(failures.close)
        summary = Summary(
            output=paths.output,
            failures=paths.failures,
            capture_dir=config.directory if config.observability_enabled else None,
            total=len(keys),
            earlier=0,
            finished=[rollout for key, rollout in resume.finished.items() if key in keys],
        )
        summary.earlier = len(summary.finished)
        progress.rollouts, progress.earlier = len(keys), summary.earlier
        progress.with_gaps = len(summary.incomplete)
        _tell_what_is_there(paths, keys, resume, summary.capture_dir)
        if summary.earlier == len(keys):
            return summary
        attempts = _attempts(spec, resume, config.collect.retries)
        await _dispatch(config, paths, attempts, output, failures, summary, progress, stop, on_started, clock)
    return summary


async def _dispatch(
    config: CaptureConfig,
    paths: RunPaths,
    attempts: Iterator[Attempt],
    output: DurableLines,
    failures: DurableLines,
    summary: Summary,
    progress: Progress,
    stop: StopRequest,
    on_started: Callable[[], None] | None,
    clock: Clock,
) -> None:
    from gym_capture.collect.ray_run import open_run  # loads Ray

    async with AsyncExitStack() as stack:
        run = await stack.enter_async_context(open_run(config, paths.rollout))
        if config.observability_enabled:
            bind_output(config.directory, paths.output)
        if on_started is not None:
            on_started()
        proxies = ProxyFleet(run.start_proxy, run.nodes, config.proxy.replicas)
        # Before the pool, so that they end after the workers: what those had under way is committed then.
        stack.push_async_callback(proxies.close)
        if config.proxy.upstream is not None:
            await unless_stopped(proxies.open(), stop)
        pool = WorkerPool(
            run.start_worker,
            config.collect.workers,
            config.collect.concurrency,
            proxies=tuple if config.proxy.upstream is None else proxies.current,
        )
        stack.push_async_callback(pool.close)
        await unless_stopped(pool.open(), stop)
        watch = asyncio.create_task(_watch(run.capture, progress))
        stack.callback(watch.cancel)
        started = clock.monotonic()
        dispatcher = Dispatcher(
            attempts,
            pool=pool,
            capture=run.capture,
            patience_s=config.capture.patience_s,
            output=output,
            failures=failures,
            concurrency=config.collect.concurrency,
            include_payloads=config.collect.include_payloads,
            progress=progress,
            stop=stop,
            clock=clock,
        )
        await dispatcher.run()
        summary.finished += dispatcher.finished
        summary.failed = dispatcher.failed
        summary.failed_attempts = progress.failed_attempts
        summary.seconds = clock.monotonic() - started
        summary.interrupted = stop.requested


async def unless_stopped(opening_up: Coroutine[Any, Any, None], stop: StopRequest) -> None:
    """Wait for the first worker or proxy, or for a stop: a cluster may never have room for one."""
    opening = asyncio.ensure_future(opening_up)
    stop.on_change(opening.cancel)
    try:
        await opening
    except asyncio.CancelledError:
        if not stop.requested:
            raise


def _checked(config: CaptureConfig) -> RunPaths:
    """What the run reads and writes, if all of it is named and can be told apart."""
    collect = config.collect
    missing = [name for name in ("input", "output", "rollout") if getattr(collect, name) is None]
    if missing:
        raise ConfigError(
            f"nothing to collect: set {', '.join(f'collect.{name}' for name in missing)} in the YAML or as key=value"
        )
    if config.observability_enabled:
        _ = config.directory
        if config.capture.drain_timeout_s < config.capture.lease_s:
            logger.warning(
                "capture.drain_timeout_s (%g) is below capture.lease_s (%g): the calls of a worker that dies will show "
                "as pending, not as lost",
                config.capture.drain_timeout_s,
                config.capture.lease_s,
            )
    source, output = Path(str(collect.input)).absolute(), Path(str(collect.output)).absolute()
    failures = failures_path(output)
    if os.path.realpath(source) in (os.path.realpath(output), os.path.realpath(failures)):
        raise ConfigError(f"collect.input and collect.output are one file, {source}; give the output a name of its own")
    rollout = str(collect.rollout)
    _check_function(rollout, config)
    _check_proxy(config)
    return RunPaths(source, output, failures, rollout)


def _check_function(rollout: str, config: CaptureConfig) -> None:
    try:
        load_rollout_function(rollout, (os.getcwd(),))
    except RolloutFunctionError as error:
        # A runtime_env may bring to the workers what the driver does not have; they check it again.
        if not (config.ray.runtime_env and error.fields.get("missing_module")):
            raise
        logger.info("%s; ray.runtime_env is set, so the workers will look", error)


def _check_proxy(config: CaptureConfig) -> None:
    if config.proxy.upstream is None:
        return
    parse_upstream(config.proxy.upstream)
    if config.proxy.port and config.proxy.replicas > 1:
        raise ConfigError(
            f"proxy.port is {config.proxy.port} and proxy.replicas {config.proxy.replicas}: proxies of one node cannot "
            "share a port. Nothing was started; leave proxy.port at 0, or proxy.replicas at 1."
        )
    if not config.ray.runtime_env:  # which may bring to the proxies what the driver does not have
        require_extra("proxy", "a capturing proxy")


def _attempts(spec: InputSpec, resume: Resume, retries: int) -> Iterator[Attempt]:
    for row in read_rows(spec):
        attempt = resume.attempt_of(row, retries)
        if attempt is not None:
            yield attempt


def _tell_what_is_there(paths: RunPaths, keys: dict[str, int], resume: Resume, capture_dir: Path | None) -> None:
    there = sum(1 for key in resume.finished if key in keys)
    if there:
        logger.info("%s: %d of %d rollouts are finished already and are skipped", paths.output, there, len(keys))
        if capture_dir is not None and holds_no_log(capture_dir):
            logger.warning("%s is new: the captures of rollouts finished earlier are not in it", capture_dir)
    others = len(resume.finished) - there
    if others:
        logger.warning("%s also holds %d rollouts that are not in %s", paths.output, others, paths.input)


async def _watch(capture: CaptureClient, progress: Progress) -> None:
    """Keep what the owner knows in the counters; an owner that is away is no reason to say anything here."""
    while True:
        try:
            stats = await capture.stats()
        except GymCaptureError:
            pass
        else:
            progress.outstanding = stats.get("outstanding", 0)
            progress.calls_now = stats.get("counts", {}).get("commits", 0)
        await asyncio.sleep(STATS_EVERY_S)
