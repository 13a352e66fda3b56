"""The counters of a run from those of its shards: what can be summed, and each shard's own. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_OLDEST = 5
_SUMMED = (
    "outstanding",
    "open_claims",
    "rollouts",
    "incomplete_rollouts",
    "late",
    "counts",
    "rows_without_token",
    "clients",
    "connections",
    "waiters",
    "buffered_bytes",
    "paused",
    "reopened",
)
_CLIENT_SUMMED = ("connects", "open_claims", "unanswered", "buffered_bytes", "dropped")


def stats_of_run(shards: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The sums over the owners of all shards, the oldest claims of all, and `shards`: what each says of itself.

    Clients are counted by their links: a process counts once in each shard that it uses.

    Args:
        shards: `service.stats` of each, in order; that of a rollout's shard has `rollout`.
    """
    run: dict[str, Any] = {"run": shards[0].get("run")}
    for name in _SUMMED:
        found = [shard[name] for shard in shards if name in shard]
        if found:
            run[name] = _sum(found)
    claims = [{**claim, "shard": number} for number, each in enumerate(shards) for claim in each["oldest_claims"]]
    run["oldest_claims"] = sorted(claims, key=lambda claim: -float(claim["age_s"]))[:_OLDEST]
    run["shards"] = [{"shard": number, **_without_rollout(shard)} for number, shard in enumerate(shards)]
    for number, shard in enumerate(shards):
        if "rollout" in shard:
            run["rollout"] = {**shard["rollout"], "shard": number}
    return run


def client_stats_of_run(shards: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The sums over this process's cores, and `shards`: those of each that was used.

    Args:
        shards: `ClientCore.stats` of each, in order; empty for one that was not used.
    """
    used = [{"shard": number, **shard} for number, shard in enumerate(shards) if shard]
    if not used:
        return {}
    sums = {name: sum(shard[name] for shard in used) for name in _CLIENT_SUMMED}
    return {"connected": all(shard["connected"] for shard in used), **sums, "shards": used}


def _without_rollout(shard: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in shard.items() if name != "rollout"}


def _sum(values: Sequence[Any]) -> Any:
    if not isinstance(values[0], Mapping):
        return sum(values)
    names = dict.fromkeys(name for value in values for name in value)
    return {name: _sum([value[name] for value in values if name in value]) for name in names}
