"""Rollouts as a list: filtered, sorted, a page at a time.

Two stages. The log's rows (which an open store holds in memory) say of every rollout its calls, claims and
incompleteness; that is enough to list by id. Models, tokens, errors and times are in the calls' records, which are on
disk: they are read for the rows that are shown, and for every rollout only where a filter or an order asks for it. What
was read once is kept and grows with the rollout, so a page that is asked for again reads what is new.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar, get_args

import msgspec

from gym_capture.reading.call_figures import CallFigures, call_figures
from gym_capture.reading.rollout_status import Status
from gym_capture.reading.rollout_tally import RolloutRow, RolloutTally
from gym_capture.storage.standing import RolloutStanding
from gym_capture.storage.store import CaptureStore

_T = TypeVar("_T")

SortKey = Literal["id", "calls", "open", "first", "last", "tokens_in", "tokens_out", "latency", "errors", "bytes"]
SORT_KEYS: tuple[SortKey, ...] = get_args(SortKey)

_CHEAP_ORDERS: dict[str, Callable[[RolloutStanding], Any]] = {
    "calls": lambda standing: standing.calls,
    "open": lambda standing: standing.outstanding,
}
_ORDERS: dict[str, Callable[[RolloutRow], Any]] = {
    "calls": lambda row: row.calls,
    "open": lambda row: row.outstanding,
    "first": lambda row: row.first_at,
    "last": lambda row: row.last_at,
    "tokens_in": lambda row: row.tokens_in,
    "tokens_out": lambda row: row.tokens_out,
    "latency": lambda row: row.latency_sum_ms,
    "errors": lambda row: row.failed,
    "bytes": lambda row: row.stored_bytes,
}


class OverviewQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which rollouts, in which order, from where.

    Args:
        text: the id has this in it, in upper or lower case.
        model: a model's name has this in it.
        status: how whole the evidence is.
        errors: only rollouts with a failed call.
        gaps: only rollouts with a gap.
        open: only rollouts with an open claim.
        sort: `open` by open claims, `latency` by its sum; what is unknown comes last either way.
        descending: the largest first.
        offset, limit: the page; a limit of None is all.
    """

    text: str = ""
    model: str = ""
    status: Status | None = None
    errors: bool = False
    gaps: bool = False
    open: bool = False
    sort: SortKey = "id"
    descending: bool = False
    offset: int = 0
    limit: int | None = 50

    @property
    def needs_records(self) -> bool:
        """Whether the records of every rollout have to be read to answer it."""
        # A damaged record is a gap, and nobody knows of it before it is read.
        return bool(self.model or self.status or self.errors or self.gaps) or self.sort not in ("id", *_CHEAP_ORDERS)


class OverviewPage(msgspec.Struct, frozen=True, kw_only=True):
    """One page. `matching` rollouts of the `known` ones fit the query; `rows` are those from `offset` on."""

    rows: list[RolloutRow]
    offset: int
    matching: int
    known: int


class RolloutOverview:
    """The rollouts of a store. Refresh the store, and the next page shows what is new.

    Args:
        store: shared with whoever reads it, but not between threads.
        heard: told of calls as they are read: the rollout, whether what it was told of that one before counts no
            longer, and the calls. So whoever wants more of them than a row has reads no record a second time.
    """

    def __init__(
        self, store: CaptureStore, heard: Callable[[str, bool, Sequence[CallFigures]], None] | None = None
    ) -> None:
        self._store = store
        self._heard = heard
        self._tallies: dict[str, RolloutTally] = {}
        self._sealed_shards = store.sealed_shards

    def page(
        self, query: OverviewQuery | None = None, standings: Sequence[RolloutStanding] | None = None
    ) -> OverviewPage:
        """The rollouts that fit a query, a page of them.

        Args:
            standings: the store's, from whoever has them already; listing 100,000 of them takes longer than a page.

        Raises:
            OSError: a file of the directory could not be read.
        """
        query = query or OverviewQuery()
        standings = self._store.standings() if standings is None else standings
        known = len(standings)
        if query.text or query.open:
            standings = [each for each in standings if _may_fit(query, each)]
        end = None if query.limit is None else query.offset + query.limit
        if query.needs_records or (query.sort == "calls" and any(each.calls is None for each in standings)):
            rows = [row for each in standings if _fits(query, row := self.row_of(each))]
            matching = len(rows)
            rows = list(_ordered(rows, query, _ORDERS)[query.offset : end])
        else:
            matching = len(standings)
            ordered = _ordered(standings, query, _CHEAP_ORDERS)
            rows = [self.row_of(each) for each in ordered[query.offset : end]]
        return OverviewPage(rows=rows, offset=query.offset, matching=matching, known=known)

    def rows(self) -> Iterator[RolloutRow]:
        """Every rollout by id. Reads the records that were not read yet."""
        return map(self.row_of, self._store.standings())

    def row(self, rollout_id: str) -> RolloutRow:
        """One rollout; one that is nowhere is unobserved.

        Raises:
            InvalidRolloutId: it is no rollout id.
        """
        return self.row_of(self._store.standing(rollout_id))

    def row_of(self, standing: RolloutStanding) -> RolloutRow:
        """The row of a rollout whose standing was just read."""
        if self._store.sealed_shards != self._sealed_shards:
            # What calls take in the log was summed, and there is none any more.
            self._sealed_shards = self._store.sealed_shards
            self._tallies.clear()
        tally = self._tallies.get(standing.rollout_id)
        anew = tally is None or not _goes_on(tally, standing)
        if tally is None or anew:
            tally = self._tallies[standing.rollout_id] = RolloutTally(standing.generation)
        calls: Iterable[CallFigures] = ()
        if standing.calls is None or tally.next_index < standing.calls:
            calls = call_figures(self._store, standing.rollout_id, tally.next_index)
        if self._heard is not None:
            calls = list(calls)
            if anew or calls:
                self._heard(standing.rollout_id, anew, calls)
        tally.add(calls)
        return tally.row(standing)


def _goes_on(tally: RolloutTally, standing: RolloutStanding) -> bool:
    """Whether what was added to a tally is still the beginning of its rollout. A NeMo Gym file may be written anew."""
    if standing.calls is None or tally.generation != standing.generation:
        return False
    return tally.seen <= standing.calls - standing.damaged


def _may_fit(query: OverviewQuery, standing: RolloutStanding) -> bool:
    return (not query.text or query.text.lower() in standing.rollout_id.lower()) and (
        not query.open or standing.outstanding > 0
    )


def _fits(query: OverviewQuery, row: RolloutRow) -> bool:
    return (
        (not query.model or any(query.model.lower() in model.lower() for model in row.models))
        and (query.status is None or row.status == query.status)
        and (not query.errors or bool(row.failed))
        and (not query.gaps or bool(row.gaps))
    )


def _ordered(items: Sequence[_T], query: OverviewQuery, orders: Mapping[str, Callable[[_T], Any]]) -> Sequence[_T]:
    """Sorted, ties by id, what is unknown last. They come sorted by id."""
    if query.sort == "id":
        return items[::-1] if query.descending else items
    key = orders[query.sort]
    known = [each for each in items if key(each) is not None]
    unknown = [each for each in items if key(each) is None]
    return [*sorted(known, key=key, reverse=query.descending), *unknown]


__all__ = ["SORT_KEYS", "OverviewPage", "OverviewQuery", "RolloutOverview", "SortKey"]
