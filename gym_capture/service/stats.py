"""What an owner says of itself: plain data that JSON can hold."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any

from gym_capture.model.rollout_state import RolloutState

if TYPE_CHECKING:
    from gym_capture.service.capture_service import CaptureService

_OLDEST = 5


def service_stats(service: CaptureService, rollout_id: str | None) -> dict[str, Any]:
    """Counters of the run and, with a rollout, of it under `rollout`."""
    ledger = service.ledger
    tenure = service.tenure
    connections = service.connections
    counters = tenure.counters
    wall = service.clock.time()
    oldest = heapq.nsmallest(_OLDEST, ledger.open_claims(), key=lambda claim: claim.at)
    open_claims = sum(len(client.claims) for client in ledger.clients.values())
    groups = counters.groups
    stats: dict[str, Any] = {
        "run": service.run,
        "epoch": service.epoch,
        "state": service.state.value,
        "directory": service.files.directory,
        "uptime_s": round(service.clock.monotonic() - service.started_at, 3),
        "outstanding": ledger.outstanding,
        "open_claims": open_claims,
        "oldest_claims": [
            {
                "rollout_id": claim.rollout.id,
                "model_call_id": claim.model_call_id,
                "age_s": round(max(wall - claim.at, 0.0), 3),
                "client": claim.client.hex(),
                "place": connections.place_of(claim.client),
            }
            for claim in oldest
        ],
        "rollouts": len(ledger.rollouts) + len(ledger.archived),
        "incomplete_rollouts": ledger.archived.incomplete
        + sum(1 for rollout in ledger.rollouts.values() if rollout.incomplete),
        "rollouts_in_memory": len(ledger.rollouts),
        "late": ledger.late,
        "counts": dict(sorted(ledger.counts.items())),
        "rows_without_token": ledger.counts["rows_without_token"],
        "clients": {
            "known": len(ledger.clients),
            "live": sum(1 for client in ledger.clients.values() if client.live),
            "connected": len(connections.sessions),
        },
        "connections": dict(sorted(connections.counts.items())),
        "waiters": service.waiters.count,
        "buffered_bytes": connections.buffered,
        "paused": len(connections.paused),
        "log": {
            "groups": groups,
            "syncs": groups,
            "frames": counters.frames,
            "bytes": counters.bytes,
            "segment": tenure.log.writer.segment.file if tenure.log else None,
            "mean_group_ms": round(1000 * counters.latency.seconds / groups, 3) if groups else None,
            "frames_per_sync": round(counters.frames / groups, 2) if groups else None,
        },
        "checkpoints": dict(sorted(tenure.checkpoint_counts.items())),
        "reopened": tenure.reopened,
        "last_failure": tenure.last_failure,
        "recovery": service.report.summary() if service.report else None,
    }
    if rollout_id is not None:
        stats["rollout"] = _rollout_stats(rollout_id, ledger.rollouts.get(rollout_id))
        stats["rollout"]["known"] |= rollout_id in ledger.archived
    return stats


def _rollout_stats(rollout_id: str, rollout: RolloutState | None) -> dict[str, Any]:
    state = rollout or RolloutState(rollout_id)
    view = state.view()
    return {
        "rollout_id": rollout_id,
        "known": rollout is not None,
        "generation": state.generation,
        "calls": state.next_index,
        "holes": state.holes,
        "outstanding": state.outstanding,
        "open_claims": len(state.open),
        "reasons": view.reasons,
        "late": state.late,
        "merged": state.merged,
        "issued": state.issued,
    }
