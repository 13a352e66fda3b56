"""The capture client: what a driver, a collector or a worker holds."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import islice
from types import TracebackType
from typing import Any, Self

from gym_capture.client.blocking_mode import run_blocking
from gym_capture.client.bulk import perform_all
from gym_capture.client.evidence_source import EvidenceReader, EvidenceSource
from gym_capture.client.host import Host, ask_owner, perform_or_give_up
from gym_capture.client.issued import IssuedCalls, check_issued
from gym_capture.client.operations import Rows
from gym_capture.client.payload_reader import PayloadReader
from gym_capture.client.rollout import BlockingRollout, RolloutHandle, check_generation
from gym_capture.errors import GymCaptureError, OwnerNotFound
from gym_capture.model.ids import rollout_id_from_record, validate_rollout_id
from gym_capture.model.merge import RolloutEvidence, attach_capture
from gym_capture.model.messages import Quiesce, Request, Stats, Stop
from gym_capture.model.rows import CURRENT, ClearRow, Outcome, Result

Reopen = tuple[Callable[..., "CaptureClient"], tuple[Any, ...]]

_CLEAR_ROWS = 1000
_RECORD_ROWS = 1000
_LONGEST_S = 10.0 * 365 * 86_400


class CaptureClient:
    """Claims, clears, quiescence and merges of one run, from any thread, loop or process.

    Args:
        host: where the core runs.
        reopen: a function and its arguments that give this client in another process; without it the client does
            not pickle.
        payload_reader: reads payloads for merges; None: through the owner.
        evidence_reader: reads the capture directory while the owner is away; None: nothing does.
    """

    def __init__(
        self,
        host: Host,
        *,
        reopen: Reopen | None = None,
        payload_reader: PayloadReader | None = None,
        evidence_reader: EvidenceReader | None = None,
    ) -> None:
        self.host = host
        self._reopen = reopen
        self._source = EvidenceSource(host, payload_reader, evidence_reader)
        self._issued: weakref.WeakValueDictionary[str, IssuedCalls] = weakref.WeakValueDictionary()

    # -- rollouts -----------------------------------------------------------------------------------------------

    def rollout(self, rollout_id: str, generation: int | None = None) -> RolloutHandle:
        """A handle on one rollout.

        Args:
            rollout_id: its id.
            generation: the token that `clear` returned; whatever is done with the handle then belongs to that
                generation or is fenced. None: to whichever is current at the time.

        Raises:
            InvalidRolloutId: it is not an id.
        """
        return RolloutHandle(self, rollout_id, generation, self.host.entropy.bytes(8).hex())

    def issued_calls(self, origin: str) -> IssuedCalls:
        """The count that a handle shares with its copies in this process."""
        issued = self._issued.get(origin)
        if issued is None:
            issued = self._issued.setdefault(origin, IssuedCalls())
        return issued

    async def record(self, rollout_id: str, exchange: Mapping[str, Any]) -> int:
        """Write an exchange into the rollout's current generation; see `RolloutHandle.record`."""
        return await self.rollout(rollout_id).record(exchange)

    async def record_many(self, exchanges: Iterable[tuple[RolloutHandle | str, Mapping[str, Any]]]) -> list[int]:
        """Write many exchanges that are at hand, some hundred under way at a time.

        Args:
            exchanges: whose each is (a handle, or an id: its current generation) and the exchange, as for
                `RolloutHandle.record`. Drawn from as fast as they are written, so a generator of any length will do.
                The exchanges of one rollout get their call indexes in the order given.

        Returns:
            The call index of each, in order.

        Raises:
            ExceptionGroup: some were not written; it holds what `record` raised for each. All others were.
        """
        calls = (partial(self._record_for, rollout, exchange) for rollout, exchange in exchanges)
        return await self.host.foreign(perform_all(calls, "exchanges to be written"))

    async def _record_for(self, rollout: RolloutHandle | str, exchange: Mapping[str, Any]) -> int:
        handle = self.rollout(rollout) if isinstance(rollout, str) else rollout
        return await handle.record(exchange)

    # -- generations --------------------------------------------------------------------------------------------

    async def clear(self, records: Iterable[Mapping[str, Any] | str], timeout_s: float | None = None) -> dict[str, int]:
        """Begin the next generation of each rollout; what was captured before is forgotten.

        Args:
            records: rollout records (those without an id are passed over) or ids.
            timeout_s: how long to wait for an owner that is away, seconds; None: `drain_timeout_s`.

        Returns:
            The new generation of each id: the token to hand to its workers.

        Raises:
            InvalidRolloutId: an id is not valid; nothing was cleared.
            TypeError: one record or id instead of several; nothing was cleared.
            OwnerUnavailable: the owner is away; some may have been cleared, and clearing again is safe.
        """
        if isinstance(records, str | Mapping):
            raise TypeError(f"clear takes several records or ids: give a list, clear([{str(records)[:60]!r}])")
        ids = list(dict.fromkeys(found for record in records if (found := rollout_id_of(record)) is not None))
        request = self.host.entropy.bytes(16).hex()
        seconds = self._timeout(timeout_s)
        generations: dict[str, int] = {}
        # One piece after the other: the owner serves everybody else in between.
        for start in range(0, len(ids), _CLEAR_ROWS):
            chunk = ids[start : start + _CLEAR_ROWS]
            rows = Rows([ClearRow(rollout_id, request) for rollout_id in chunk], seconds)
            results: list[Result] = await perform_or_give_up(self.host, rows)
            for rollout_id, result in zip(chunk, results, strict=True):
                if result.outcome not in (Outcome.APPLIED, Outcome.DUPLICATE):
                    raise GymCaptureError(
                        f"rollout {rollout_id} was not cleared ({Outcome(result.outcome).name.lower()})"
                    )
                generations[rollout_id] = result.generation
        return generations

    # -- quiescence and merging ---------------------------------------------------------------------------------

    async def quiesce(self, rollout_id: str | None = None, timeout_s: float | None = None) -> bool:
        """Wait until no claim of the rollout (None: of the whole run) is outstanding.

        Args:
            timeout_s: how long at most, seconds; None: `drain_timeout_s`.

        Returns:
            Whether that came to pass. False too while the owner is away.

        Raises:
            InvalidRolloutId: it is not an id.
            OwnerNotFound, HandshakeRefused: there is no owner that would answer.
        """
        if rollout_id is not None:
            validate_rollout_id(rollout_id)
        seconds = self._timeout(timeout_s)
        return bool((await self._ask(Quiesce(rollout_id, seconds), seconds))[0])

    async def merge(
        self,
        record: dict[str, Any],
        include_payloads: bool = False,
        *,
        issued: int | None = None,
        timeout_s: float | None = None,
        generation: int | None = None,
    ) -> dict[str, Any]:
        """Wait until the record's rollout is quiescent, then attach what was captured of it, in place.

        Args:
            record: the rollout record; one without an id is returned as it is.
            include_payloads: whether calls show their requests and responses.
            issued: how many calls were issued (`RolloutHandle.issued`); those that are nowhere become a gap.
            timeout_s: how long to wait for quiescence, seconds; None: `drain_timeout_s`. What is still outstanding
                then is a gap.
            generation: the token that the rollout worked with.

        Returns:
            The same record. An owner that cannot be reached is a gap too.

        Raises:
            InvalidRolloutId: the record's id is not valid.
            Fenced: that generation was cleared since.
            ValueError: `issued` or `timeout_s` is no such number.
        """
        counted = check_issued(issued)
        rollout_id = rollout_id_from_record(record)
        if rollout_id is None:
            return record
        token, seconds = check_generation(generation), self._timeout(timeout_s)
        evidence = await self._source.gather(rollout_id, token, include_payloads, counted, seconds)
        return attach_capture(record, evidence, include_payloads)

    async def merge_many(
        self,
        records: Iterable[dict[str, Any]],
        include_payloads: bool = False,
        *,
        issued: Mapping[str, int] | None = None,
        timeout_s: float | None = None,
        generations: Mapping[str, int] | None = None,
    ) -> list[dict[str, Any]]:
        """`merge` for many records, some hundred at a time, each in place.

        Args:
            issued: how many calls were issued, by rollout id; rollouts that are not named there were not counted.
            timeout_s: how long to wait for the quiescence of each, seconds; None: `drain_timeout_s`.
            generations: the tokens that they worked with, by rollout id, as `clear` returned them.

        Returns:
            The same records, in order.

        Raises:
            ExceptionGroup: some could not be merged; it holds what `merge` raised for each. All others are.
        """

        async def merge_one(record: dict[str, Any]) -> dict[str, Any]:
            rollout_id = rollout_id_from_record(record) or ""
            counted, token = (issued or {}).get(rollout_id), (generations or {}).get(rollout_id)
            return await self.merge(record, include_payloads, issued=counted, timeout_s=timeout_s, generation=token)

        return await self.host.foreign(
            perform_all((partial(merge_one, record) for record in records), "rollouts to be merged")
        )

    async def evidence(self, rollout_id: str, include_payloads: bool = False) -> RolloutEvidence:
        """What is known of a rollout's current generation now, journaled as a merge. Waits for no claim.

        An owner that cannot be reached within `drain_timeout_s` makes it `unreadable`, with what the directory holds.

        Raises:
            InvalidRolloutId: it is not an id.
        """
        validate_rollout_id(rollout_id)
        return await self._source.gather(rollout_id, CURRENT, include_payloads, 0, self._timeout(None), quiesce=False)

    # -- the owner ----------------------------------------------------------------------------------------------

    async def stats(self, rollout_id: str | None = None, timeout_s: float | None = None) -> dict[str, Any]:
        """The run's counters, with a rollout's own when one is named; this process's are under `client`.

        Raises:
            OwnerUnavailable: the owner is away.
        """
        if rollout_id is not None:
            validate_rollout_id(rollout_id)
        value, _ = await self._ask(Stats(rollout_id), self._timeout(timeout_s))
        return {**value, "client": self.host.core_stats()}

    async def stop(self, timeout_s: float | None = None) -> None:
        """End the owner cleanly. Clients that go on then find it away.

        Raises:
            OwnerUnavailable: the owner is away; whether it ended is not known.
        """
        try:
            await self._ask(Stop(), self._timeout(timeout_s))
        except OwnerNotFound:
            return  # it has ended already

    async def close(self, timeout_s: float | None = None) -> bool:
        """Wait until all that was handed in is on disk, then end this process's link.

        Args:
            timeout_s: how long to wait at most, seconds; None: `drain_timeout_s`.

        Returns:
            False when something was left, and is lost.
        """
        return await self.host.close(self._timeout(timeout_s))

    async def _ask(self, request: Request, timeout_s: float) -> tuple[Any, bytes]:
        return await ask_owner(self.host, request, timeout_s)

    def _timeout(self, timeout_s: float | None) -> float:
        if timeout_s is None:
            return self.host.options.drain_timeout_s
        if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or not 0 <= timeout_s <= _LONGEST_S:
            raise ValueError(f"timeout_s is a number of seconds from 0 on, and cannot be {timeout_s!r}")
        return float(timeout_s)

    # -- itself -------------------------------------------------------------------------------------------------

    @property
    def sync(self) -> BlockingClient:
        """The same calls for code without a loop."""
        return BlockingClient(self)

    @property
    def transport_name(self) -> str:
        """How the owner is reached: `stream`, `ray` or `in-process`."""
        return self.host.transport_name

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        if self._reopen is None:
            raise TypeError("this CaptureClient does not pickle: it was made without `reopen`")
        return self._reopen


class BlockingClient:
    """`CaptureClient` for code without a loop. It blocks the calling thread, an event loop in it too."""

    def __init__(self, client: CaptureClient) -> None:
        self._client = client

    def rollout(self, rollout_id: str, generation: int | None = None) -> BlockingRollout:
        """As `CaptureClient.rollout`."""
        return BlockingRollout(self._client.rollout(rollout_id, generation))

    def record(self, rollout_id: str, exchange: Mapping[str, Any]) -> int:
        """As `CaptureClient.record`."""
        return run_blocking(self._client.record(rollout_id, exchange))

    def record_many(self, exchanges: Iterable[tuple[BlockingRollout | str, Mapping[str, Any]]]) -> list[int]:
        """As `CaptureClient.record_many`; `exchanges` is drawn from in this thread, some thousand at a time."""
        pairs = ((rollout if isinstance(rollout, str) else rollout.handle, exchange) for rollout, exchange in exchanges)
        indexes: list[int] = []
        errors: list[Exception] = []
        while chunk := list(islice(pairs, _RECORD_ROWS)):
            try:
                indexes += run_blocking(self._client.record_many(chunk))
            except ExceptionGroup as failed:
                errors += failed.exceptions
        if errors:
            raise ExceptionGroup(f"{len(errors)} exchanges were not written; the others were", errors)
        return indexes

    def clear(self, records: Iterable[Mapping[str, Any] | str], timeout_s: float | None = None) -> dict[str, int]:
        """As `CaptureClient.clear`."""
        return run_blocking(self._client.clear(records, timeout_s))

    def quiesce(self, rollout_id: str | None = None, timeout_s: float | None = None) -> bool:
        """As `CaptureClient.quiesce`."""
        return run_blocking(self._client.quiesce(rollout_id, timeout_s))

    def merge(
        self,
        record: dict[str, Any],
        include_payloads: bool = False,
        *,
        issued: int | None = None,
        timeout_s: float | None = None,
        generation: int | None = None,
    ) -> dict[str, Any]:
        """As `CaptureClient.merge`."""
        return run_blocking(
            self._client.merge(record, include_payloads, issued=issued, timeout_s=timeout_s, generation=generation)
        )

    def merge_many(
        self,
        records: Iterable[dict[str, Any]],
        include_payloads: bool = False,
        *,
        issued: Mapping[str, int] | None = None,
        timeout_s: float | None = None,
        generations: Mapping[str, int] | None = None,
    ) -> list[dict[str, Any]]:
        """As `CaptureClient.merge_many`."""
        return run_blocking(
            self._client.merge_many(
                records, include_payloads, issued=issued, timeout_s=timeout_s, generations=generations
            )
        )

    def stats(self, rollout_id: str | None = None, timeout_s: float | None = None) -> dict[str, Any]:
        """As `CaptureClient.stats`."""
        return run_blocking(self._client.stats(rollout_id, timeout_s))

    def stop(self, timeout_s: float | None = None) -> None:
        """As `CaptureClient.stop`."""
        run_blocking(self._client.stop(timeout_s))

    def close(self, timeout_s: float | None = None) -> bool:
        """As `CaptureClient.close`."""
        return run_blocking(self._client.close(timeout_s))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def rollout_id_of(record: Mapping[str, Any] | str) -> str | None:
    """The id of a record, or a plain id itself, checked; None for a record without one."""
    return validate_rollout_id(record) if isinstance(record, str) else rollout_id_from_record(record)
