"""Several hosts as one: a client of a run with several shards, each with an owner and a core of its own."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, TypeVar

import msgspec

from gym_capture.client.core_thread import CoreThread
from gym_capture.client.host import CoreHost, Host, ask_owner, perform_or_give_up
from gym_capture.client.operations import Ask, Flush, Operation, Rows
from gym_capture.client.options import ClientOptions
from gym_capture.client.shard_stats import client_stats_of_run, stats_of_run
from gym_capture.client.transport import Transport
from gym_capture.client.work_aside import work_done
from gym_capture.errors import GymCaptureError, OwnerNotFound
from gym_capture.model.clock import Clock
from gym_capture.model.entropy import Entropy
from gym_capture.model.messages import Quiesce, Request, Stats, Stop
from gym_capture.model.rows import Result
from gym_capture.model.run_quiescence import RunQuiescence, Standing, Verdict
from gym_capture.model.shards import shard_of

T = TypeVar("T")


class _Incarnation:
    """This process."""


_process = _Incarnation()


def host_over(transports: Sequence[Transport], options: ClientOptions | None = None) -> Host:
    """A host in a thread of its own, for an owner, or for the owners of a run's shards in order."""
    if len(transports) == 1:
        return CoreHost(transports[0], options)
    thread = CoreThread()
    return ShardedHost([CoreHost(transport, options, thread=thread) for transport in transports])


class ShardedHost:
    """Hands what is about a rollout to its shard, and what is about the run to all of them. No core runs here.

    Only shards that are used are connected to.

    Args:
        hosts: one for each shard, in order; they go by the same options, clock and entropy.
    """

    def __init__(self, hosts: Sequence[Host]) -> None:
        self._hosts = list(hosts)
        self._of_run: dict[type[Request], Callable[[Ask], Coroutine[Any, Any, Any]]] = {
            Quiesce: self._quiesce,
            Stats: self._stats,
            Stop: self._stop,
        }

    def _shard(self, rollout_id: str) -> int:
        return shard_of(rollout_id, len(self._hosts))

    # -- what a host tells --------------------------------------------------------------------------------------

    @property
    def options(self) -> ClientOptions:
        """The limits and times, for each shard's core."""
        return self._hosts[0].options

    @property
    def clock(self) -> Clock:
        """Where calls' times come from."""
        return self._hosts[0].clock

    @property
    def entropy(self) -> Entropy:
        """Where ids come from."""
        return self._hosts[0].entropy

    @property
    def transport_name(self) -> str:
        """`stream`, `ray` or `in-process`; several where shards are reached differently."""
        return "+".join(sorted({host.transport_name for host in self._hosts}))

    @property
    def incarnation(self) -> object:
        """Another one after a fork."""
        return _process

    def core_stats(self) -> dict[str, Any]:
        """This process's counters: the sums, and each shard's that was used."""
        return client_stats_of_run([host.core_stats() for host in self._hosts])

    # -- operations ---------------------------------------------------------------------------------------------

    def perform(self, operation: Operation) -> Coroutine[Any, Any, Any]:
        """Hand in an operation and wait for its value."""
        rollout_id = operation.of_rollout()
        if rollout_id is not None:
            return self._hosts[self._shard(rollout_id)].perform(operation)
        return self._everywhere(operation)

    def post(self, operation: Operation) -> None:
        """Hand in an operation without waiting. What is about the run is only ever waited for."""
        rollout_id = operation.of_rollout()
        if rollout_id is not None:
            self._hosts[self._shard(rollout_id)].post(operation)

    async def foreign(self, work: Coroutine[Any, Any, T]) -> T:
        """Await a coroutine that is not made of operations only."""
        return await self._hosts[0].foreign(work)

    async def close(self, timeout_s: float) -> bool:
        """Wait until all that was handed in is answered (at most `timeout_s` in all), then end every core."""
        deadline = self.clock.monotonic() + timeout_s
        await work_done(self, timeout_s)
        closed = [await host.close(max(0.0, deadline - self.clock.monotonic())) for host in self._hosts]
        return all(closed)

    async def _everywhere(self, operation: Operation) -> Any:
        if isinstance(operation, Rows):
            return await self.foreign(self._rows(operation))
        if isinstance(operation, Flush):
            return await self.foreign(self._flush(operation.timeout_s))
        if isinstance(operation, Ask):
            return await self.foreign(self._of_run[type(operation.request)](operation)), b""
        raise TypeError(f"a {type(operation).__name__} is about one rollout")

    # -- the run ------------------------------------------------------------------------------------------------

    async def _rows(self, rows: Rows) -> list[Result]:
        """Each shard's rows in one piece, all at once. A row sent again is the same row, in whichever piece."""
        places: dict[int, list[int]] = {}
        for place, row in enumerate(rows.rows):
            places.setdefault(self._shard(row.rollout), []).append(place)

        async def ask(shard: int) -> list[Result]:
            piece = Rows([rows.rows[place] for place in places[shard]], rows.timeout_s)
            results: list[Result] = await perform_or_give_up(self._hosts[shard], piece)
            return results

        answers = await self._together(places, ask)
        results: dict[int, Result] = {}
        for found, answer in zip(places.values(), answers, strict=True):
            results.update(zip(found, answer, strict=True))
        return [results[place] for place in range(len(rows.rows))]

    async def _flush(self, timeout_s: float) -> bool:
        async def flush(shard: int) -> bool:
            return bool(await perform_or_give_up(self._hosts[shard], Flush(timeout_s)))

        return all(await self._together(range(len(self._hosts)), flush))

    async def _quiesce(self, ask: Ask) -> bool:
        """Ask all shards, again and again until they say the same twice; see `model.run_quiescence`."""
        question = RunQuiescence(len(self._hosts))
        deadline = self.clock.monotonic() + ask.timeout_s

        async def standing_of(shard: int) -> Standing | None:
            left = max(0.0, deadline - self.clock.monotonic())
            value, _ = await ask_owner(self._hosts[shard], Quiesce(None, left, True), left)
            return msgspec.convert(value, Standing) if value else None

        while True:
            verdict = Verdict.WAIT
            for shard, standing in enumerate(await self._together(range(len(self._hosts)), standing_of)):
                if standing is None:
                    return False  # its time is over
                verdict = question.answer(shard, standing)
            if verdict is Verdict.QUIESCENT:
                return True

    async def _stats(self, ask: Ask) -> dict[str, Any]:
        named = ask.request.rollout if isinstance(ask.request, Stats) else None

        async def stats_of(shard: int) -> dict[str, Any]:
            request = Stats(named if named is not None and shard == self._shard(named) else None)
            value: dict[str, Any] = (await ask_owner(self._hosts[shard], request, ask.timeout_s))[0]
            return value

        return stats_of_run(await self._together(range(len(self._hosts)), stats_of))

    async def _stop(self, ask: Ask) -> bool:
        """End every owner. One that has ended already is fine; that all have is told."""

        async def stop(shard: int) -> bool:
            try:
                await ask_owner(self._hosts[shard], Stop(), ask.timeout_s)
            except OwnerNotFound:
                return False
            return True

        if not any(await self._together(range(len(self._hosts)), stop)):
            raise OwnerNotFound("no shard of the run has a live owner: they have ended already.", candidates=[])
        return True

    async def _together(self, shards: Iterable[int], call: Callable[[int], Coroutine[Any, Any, T]]) -> list[T]:
        """What the calls give, in order. The first that fails names its shard and ends the others' waiting."""

        async def named(shard: int) -> T:
            try:
                return await call(shard)
            except GymCaptureError as error:
                fields = {**error.fields, "shard": shard}
                raise type(error)(f"shard {shard} of {len(self._hosts)}: {error}", **fields) from error

        tasks = [asyncio.ensure_future(named(shard)) for shard in shards]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()


def _after_fork() -> None:
    global _process
    _process = _Incarnation()


os.register_at_fork(after_in_child=_after_fork)
