"""The same numbers from those who should agree on them, once a run is at rest. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from tests.crash.lab.checker import Stored
from tests.crash.lab.journal import ACKNOWLEDGED, History, Merge

COUNTED = ("claims", "commits", "releases", "losses", "fenced", "clears", "merges", "refused_rows", "conflicts")
"""What the owner counts since the run began, and a replay of the log counts again."""


class Account(NamedTuple):
    """One number, as two sides have it."""

    what: str
    one: int
    other: int

    @property
    def agrees(self) -> bool:
        """Whether they have the same."""
        return self.one == self.other


def accounts(
    history: History, stored: Mapping[str, Stored], stats: Mapping[str, Any], replayed: Mapping[str, int]
) -> list[Account]:
    """What has to agree.

    Args:
        history: what everybody was told.
        stored: what a fresh reader finds.
        stats: what the owner said of itself after the last merges.
        replayed: the counts of a fresh replay of the log.
    """
    found = {(rollout, call_id) for rollout, each in stored.items() for call_id, _ in each.calls}
    told = {
        (call.rollout, call.call_id)
        for call in history.calls.values()
        if call.outcome in ACKNOWLEDGED
        and call.rollout in stored
        and call.told_generation == stored[call.rollout].generation
    }
    last: dict[str, Merge] = {merge.rollout: merge for merge in sorted(history.merges, key=lambda each: each.asked_at)}
    merged = {
        (rollout, call_id)
        for rollout, merge in last.items()
        if rollout in stored and merge.generation == stored[rollout].generation
        for call_id, _ in merge.calls
    }
    handed_out: dict[str, int] = {}
    for clear in history.clears:
        handed_out[clear.rollout] = max(handed_out.get(clear.rollout, 0), clear.generation or 0)
    kept = [
        rollout for rollout, highest in handed_out.items() if stored.get(rollout, Stored(0, [])).generation >= highest
    ]
    return [
        Account("acknowledged calls of current generations, and of them found", len(told), len(told & found)),
        Account("exchanges found, and returned by the last merges", len(found), len(found & merged)),
        Account("exchanges returned by the last merges, and found", len(merged), len(found & merged)),
        Account(
            "rollouts that a generation was handed out for, and that are in it or a later one",
            len(handed_out),
            len(kept),
        ),
        Account("claims outstanding", stats["outstanding"], 0),
        Account("late rows", stats["late"], 0),
        *(
            Account(f"{name}, as the owner and a replay count", stats["counts"].get(name, 0), replayed.get(name, 0))
            for name in COUNTED
        ),
    ]
