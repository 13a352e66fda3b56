"""What each simulated worker and collector was told, and the check of it against the contract.

The register is the model: it knows only what callers saw, and judges what the directory and the owner say by that.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gym_capture.model.ledger import Ledger
from gym_capture.model.pages import unpack_archived
from tests.simulation.loop import Process

LEASE_MARGIN_S = 3.0
"""A holder that was silent for longer than this may have lost its lease (6 s, less what the clocks' steps take)."""

KEPT = ("durable", "duplicate")


@dataclass(slots=True)
class Call:
    """One model call, as its caller saw it.

    Attributes:
        generation: the token it was made with; None: whichever was current.
        told_generation: what the claim's answer said.
        claimed_at: when the claim was acknowledged; None: it never was.
        closing_at: when the caller began to commit, release or give it up.
        closed_as: `commit`, `release` or `given up`.
        outcome: what the caller was told in the end.
        told_at: when.
    """

    rollout: str
    call_id: str
    generation: int | None
    holder: Process
    asked_at: float
    told_generation: int | None = None
    claimed_at: float | None = None
    closing_at: float | None = None
    closed_as: str = ""
    outcome: str | None = None
    told_at: float | None = None


@dataclass(slots=True)
class Clear:
    """A new generation, from when it was asked for to when it was told."""

    rollout: str
    asked_at: float
    told_at: float | None = None
    generation: int | None = None


@dataclass
class Register:
    """Everything that anybody was told.

    Attributes:
        requests: what each call asked, by its id; filled by whoever makes the calls.
    """

    requests: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    clears: list[Clear] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    # -- while it runs ------------------------------------------------------------------------------------------

    def claimed(self, call: Call, ledger: Ledger | None) -> None:
        """A caller is told that its claim is open, at this moment.

        Args:
            ledger: of the owner that serves, if one does. It looks ahead of what callers can see.
        """
        if ledger is None:
            return
        state = ledger.rollouts.get(call.rollout)
        open_there = state is not None and any(claim.model_call_id == call.call_id for claim in state.open.values())
        archived = ledger.archived.get(call.rollout)
        current = state.generation if state is not None else call.told_generation
        if archived is not None:  # it left the memory with nothing open; it may have been cleared before that
            current = unpack_archived(archived).generation
        cleared = current != call.told_generation
        if not open_there and not cleared:
            self.violations.append(
                f"at {call.claimed_at:.3f} call {call.call_id} of {call.rollout} is told to be claimed, and its claim "
                "is not open: quiescence would miss it"
            )

    def quiescent(self, rollout: str | None, asked_at: float, told_at: float) -> None:
        """A caller was told that nothing is outstanding."""
        self.counts["quiescent"] += 1
        for call in self.calls:
            if rollout not in (None, call.rollout) or call.claimed_at is None or call.claimed_at >= asked_at:
                continue
            if call.closing_at is not None and call.closing_at <= told_at:
                continue
            if not call.holder.alive or call.holder.silent_for(call.claimed_at, told_at) > LEASE_MARGIN_S:
                continue  # its claim may be lost, which is known
            if self._cleared(call, told_at):
                continue
            self.violations.append(
                f"false quiescence of {rollout or 'the run'} at {told_at:.3f}: call {call.call_id} is claimed since "
                f"{call.claimed_at:.3f} and still open"
            )

    def merged(self, rollout: str, generation: int, asked_at: float, told_at: float, value: dict[str, Any]) -> None:
        """A caller merged; `value` is `ng_model_call_capture`."""
        self.counts["merged"] += 1
        if any(gap["code"] == "model_call_capture_records_unreadable" for gap in value.get("gaps", [])):
            self.violations.append(f"merge at {asked_at:.3f} of {rollout}: damaged exchanges: {value['gaps']}")
        if any(gap["code"] == "model_call_capture_unreadable" for gap in value.get("gaps", [])):
            self.counts["merged without the owner"] += 1
            return
        what = f"merge at {asked_at:.3f}"
        self._check(rollout, generation, value["calls"], asked_at, what)
        self._check_losses(rollout, generation, _lost(value), told_at, what)

    def _check_losses(self, rollout: str, generation: int, lost: int, told_at: float, what: str) -> None:
        """A claim is lost only where its holder was gone, or was silent for about a lease."""
        excused = [
            call
            for call in self.calls
            if call.rollout == rollout
            and call.generation in (None, generation)
            and (not call.holder.alive or call.holder.silent_for(call.asked_at, told_at) > LEASE_MARGIN_S)
        ]
        if lost > len(excused):
            self.violations.append(
                f"{what} of {rollout}: {lost} claims are lost, but only {len(excused)} had a holder that was silent"
            )

    def _cleared(self, call: Call, before: float) -> bool:
        """Whether a clear that the call does not belong to was asked for since its claim."""
        return any(
            clear.rollout == call.rollout
            and clear.asked_at <= before
            # The claim's answer may be slower than a clear that came after the claim.
            and (clear.told_at is None or clear.told_at >= call.asked_at)
            and clear.generation != call.told_generation
            for clear in self.clears
        )

    def _check(
        self, rollout: str, generation: int | None, calls: list[dict[str, Any]], asked_at: float, what: str
    ) -> None:
        found = Counter(call["model_call_id"] for call in calls)
        twice = [call_id for call_id, count in found.items() if count > 1]
        if twice:
            self.violations.append(f"{what} of {rollout}: {twice} counted twice")
        known = {call.call_id: call for call in self.calls if call.rollout == rollout}
        for call_id in found:
            call = known.get(call_id)
            if call is None:
                self.violations.append(f"{what} of {rollout}: {call_id} was never made")
            elif generation is not None and call.generation not in (None, generation):
                self.violations.append(
                    f"{what} of {rollout}: {call_id} belongs to generation {call.generation}, not to {generation}"
                )
        self.violations += [
            f"{what} of {rollout}: {call['model_call_id']} has another payload than it was given"
            for call in calls
            if call.get("request") not in (None, self.requests.get(call["model_call_id"]))
        ]
        indexes = [call["call_index"] for call in calls]
        if indexes != sorted(set(indexes)):
            self.violations.append(f"{what} of {rollout}: call indexes {indexes}")
        if generation is None:
            return
        for call in known.values():
            kept = call.outcome in KEPT and call.told_generation == generation
            if kept and call.told_at is not None and call.told_at < asked_at and call.call_id not in found:
                self.violations.append(f"{what} of {rollout}: {call.call_id} was acknowledged and is missing")

    # -- at the end ---------------------------------------------------------------------------------------------

    def settle(
        self,
        rollout: str,
        generation: int,
        exchanges: list[dict[str, Any]],
        reasons: dict[str, int] | None,
        what: str,
    ) -> None:
        """Everything has come to rest: what the directory holds of a rollout, against what was told.

        Args:
            exchanges: whole, in call order.
            reasons: why it is incomplete; None: it is not.
        """
        listed = [
            {"model_call_id": found["model_call_id"], "call_index": n, "request": found["request"]}
            for n, found in enumerate(exchanges)
        ]
        self._check(rollout, generation, listed, float("inf"), what)
        by_id = {found["model_call_id"]: found for found in exchanges}
        told = [clear.generation for clear in self.clears if clear.rollout == rollout and clear.generation is not None]
        if told and generation < max(told):
            self.violations.append(f"{what} of {rollout}: generation {generation}, but {max(told)} was handed out")
        forgotten = [
            call.call_id
            for call in self.calls
            if call.rollout == rollout
            and call.claimed_at is not None
            and call.told_generation == generation
            and call.call_id not in by_id
            and call.outcome not in ("fenced",)
        ]
        if forgotten and not reasons:
            self.violations.append(f"{what} of {rollout}: claims {forgotten} are forgotten: nothing says so")
        released = sum(
            call.rollout == rollout
            and call.told_generation == generation
            and call.closed_as == "release"
            and call.outcome == "released"
            and call.claimed_at is not None
            for call in self.calls
        )
        if released and not reasons:
            self.violations.append(f"{what} of {rollout}: {released} released calls, nothing says so")
        if reasons and "lost" in reasons:
            # Not more than what callers cannot account for.
            missing = sum(
                call.rollout == rollout and call.generation in (None, generation) and call.call_id not in by_id
                for call in self.calls
            )
            if reasons["lost"] > missing:
                self.violations.append(
                    f"{what} of {rollout}: {reasons['lost']} lost, but only {missing} calls are missing"
                )


def _lost(value: dict[str, Any]) -> int:
    """How many claims a merged value says are lost."""
    for gap in value.get("gaps", []):
        found = re.search(r"lost=(\d+)", str(gap.get("detail") or ""))
        if gap["code"] == "model_call_capture_incomplete" and found:
            return int(found[1])
    return 0
