"""Everything that a reader says of a directory, in comparable values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gym_capture.storage.store import CaptureStore


def says(store: CaptureStore, rollouts: Iterable[str]) -> dict[str, Any]:
    """What a store says of the run, and of each of these rollouts."""
    return {
        "ids": store.rollout_ids(),
        "outstanding": store.outstanding(),
        "standings": store.standings(),
        "open": store.open_claims(),
        **{rollout: says_of(store, rollout) for rollout in rollouts},
    }


def says_of(store: CaptureStore, rollout: str) -> dict[str, Any]:
    """What a store says of one rollout."""
    return {
        "knows": store.knows(rollout),
        "generation": store.generation(rollout),
        "is_incomplete": store.is_incomplete(rollout),
        "outstanding": store.outstanding(rollout),
        "standing": store.standing(rollout),
        "open": store.open_claims(rollout),
        "records": list(store.records(rollout)),
        "records from 1": list(store.records(rollout, 1)),
        "exchanges": store.read_indexed(rollout),
        "evidence": store.evidence(rollout),
    }
