"""The contract, against what everybody was told and what the directory holds. Pure: values in, violations out."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.crash.lab.journal import Call, History, Merge, Quiet

LOST = "acknowledged lost"
DOUBLED = "doubled"
MIXED = "generations mixed"
FORGOTTEN = "claim forgotten"
EARLY = "false quiescence"
WRONG = "payload wrong"
UNFOUNDED = "lost without cause"
ERROR = "caller saw an error"
UNKNOWN = "call that was never made"
BACKWARDS = "generation went back"
UNREADABLE = "unreadable"
KINDS = (LOST, DOUBLED, MIXED, FORGOTTEN, EARLY, WRONG, UNFOUNDED, ERROR, UNKNOWN, BACKWARDS, UNREADABLE)


class Violation(NamedTuple):
    """What is wrong, by kind, and where."""

    kind: str
    what: str


@dataclass
class Stored:
    """What a fresh reader finds of one rollout once all has come to rest.

    Args:
        generation: its current one.
        calls: (model_call_id, digest of request and response) in call order.
        reasons: why it is incomplete; None: it is not.
        damaged: exchanges that cannot be read.
    """

    generation: int
    calls: list[tuple[str, str]]
    reasons: dict[str, int] | None = None
    damaged: int = 0


@dataclass
class _Check:
    history: History
    stored: dict[str, Stored]
    silence_s: float
    violations: list[Violation] = field(default_factory=list)
    by_rollout: dict[str, list[Call]] = field(default_factory=dict)

    def say(self, kind: str, what: str) -> None:
        self.violations.append(Violation(kind, what))

    def run(self) -> list[Violation]:
        for call in self.history.calls.values():
            self.by_rollout.setdefault(call.rollout, []).append(call)
            if call.error is not None:
                self.say(ERROR, f"call {call.call_id}: {call.error}")
        for quiet in self.history.quiets:
            self._quiet(quiet)
        for merge in self.history.merges:
            self._merge(merge)
        for rollout in sorted({*self.by_rollout, *self.stored}):
            self._at_rest(rollout, self.stored.get(rollout) or Stored(0, []))
        return self.violations

    # -- while it ran -------------------------------------------------------------------------------------------

    def _quiet(self, quiet: Quiet) -> None:
        calls = self.history.calls.values() if quiet.rollout is None else self.by_rollout.get(quiet.rollout, [])
        for call in calls:
            if call.claimed_at is None or call.claimed_at >= quiet.asked_at:
                continue
            if call.closing_at is not None and call.closing_at <= quiet.told_at:
                continue
            if self._excused(call, quiet.told_at) or self._cleared(call, quiet.told_at):
                continue
            self.say(
                EARLY,
                f"{quiet.rollout or 'the run'} from {quiet.asked_at:.3f} to {quiet.told_at:.3f}: call {call.call_id} "
                f"is claimed since {call.claimed_at:.3f} and open",
            )

    def _merge(self, merge: Merge) -> None:
        what = f"merge of {merge.rollout} (generation {merge.generation}) at {merge.asked_at:.3f}"
        codes = {code for code, _ in merge.gaps}
        self._listed(merge.rollout, merge.generation, [call_id for call_id, _ in merge.calls], what)
        indexes = [index for _, index in merge.calls]
        if indexes != sorted(set(indexes)):
            self.say(DOUBLED, f"{what}: call indexes {indexes}")
        if "model_call_capture_records_unreadable" in codes:
            self.say(UNREADABLE, f"{what}: {merge.gaps}")
        if "model_call_capture_unreadable" in codes:
            return  # the owner was away, and it says so
        found = {call_id for call_id, _ in merge.calls}
        for call in self.by_rollout.get(merge.rollout, []):
            if call.told_generation != merge.generation or call.call_id in found:
                continue
            if _acknowledged(call) and call.told_at is not None and call.told_at < merge.asked_at:
                self.say(LOST, f"{what}: {call.call_id} was acknowledged at {call.told_at:.3f} and is not in it")
            elif call.claimed_at is not None and call.claimed_at < merge.asked_at and not codes:
                self.say(FORGOTTEN, f"{what}: {call.call_id} is claimed since {call.claimed_at:.3f}, no gap says so")
        lost = lost_in(merge)
        excused = sum(
            call.generation in (None, merge.generation) and self._excused(call, merge.told_at)
            for call in self.by_rollout.get(merge.rollout, [])
        )
        if lost > excused:
            self.say(UNFOUNDED, f"{what}: {lost} lost, but only {excused} had a holder that was silent or gone")

    # -- at rest ------------------------------------------------------------------------------------------------

    def _at_rest(self, rollout: str, stored: Stored) -> None:
        what = f"directory, rollout {rollout}"
        told = [each.generation for each in self.history.clears if each.rollout == rollout and each.generation]
        if told and stored.generation < max(told):
            self.say(BACKWARDS, f"{what}: generation {stored.generation}, but {max(told)} was handed out")
        self._listed(rollout, stored.generation, [call_id for call_id, _ in stored.calls], what)
        if stored.damaged:
            self.say(UNREADABLE, f"{what}: {stored.damaged} exchanges")
        digests = dict(stored.calls)
        for call in self.by_rollout.get(rollout, []):
            if (call.told_generation or 0) > stored.generation and _acknowledged(call):
                self.say(LOST, f"{what}: {call.call_id}, with its generation {call.told_generation}")
            if call.told_generation != stored.generation:
                continue
            if call.call_id in digests:
                if call.closed_as == "commit" and digests[call.call_id] != call.digest:
                    self.say(WRONG, f"{what}: {call.call_id}")
            elif _acknowledged(call):
                self.say(LOST, f"{what}: {call.call_id} was acknowledged at {call.told_at or 0.0:.3f}")
            elif call.claimed_at is not None and call.outcome != "fenced" and not stored.reasons:
                self.say(FORGOTTEN, f"{what}: {call.call_id} was claimed at {call.claimed_at:.3f}, nothing says so")

    # -- both ---------------------------------------------------------------------------------------------------

    def _listed(self, rollout: str, generation: int, call_ids: list[str], what: str) -> None:
        for call_id, times in Counter(call_ids).items():
            if times > 1:
                self.say(DOUBLED, f"{what}: {call_id} {times} times")
            call = self.history.calls.get(call_id)
            if call is None or call.rollout != rollout:
                self.say(UNKNOWN, f"{what}: {call_id}")
            elif call.generation not in (None, generation) or call.told_generation not in (None, generation):
                of = call.generation if call.generation is not None else call.told_generation
                self.say(MIXED, f"{what}: {call_id} is of generation {of}")

    def _excused(self, call: Call, until: float) -> bool:
        """Whether the call's claim may have been lost by then, for its holder was silent, cut off or dead."""
        return self.history.silent(call.holder, call.asked_at, until, self.silence_s)

    def _cleared(self, call: Call, before: float) -> bool:
        """Whether its generation may have ended by then. A clear may be told of before a claim that it fences is."""
        return any(
            clear.rollout == call.rollout
            and clear.asked_at <= before
            and (clear.told_at is None or clear.told_at >= call.asked_at)
            and (clear.generation is None or clear.generation > (call.told_generation or 0))
            for clear in self.history.clears
        )


def _acknowledged(call: Call) -> bool:
    return call.outcome in ("durable", "duplicate")


def lost_in(merge: Merge) -> int:
    """How many claims a merge said are lost."""
    for code, detail in merge.gaps:
        found = re.search(r"\blost=(\d+)", detail or "")
        if code == "model_call_capture_incomplete" and found:
            return int(found[1])
    return 0


def check(history: History, stored: dict[str, Stored], *, silence_s: float) -> list[Violation]:
    """Everything that is wrong with a run.

    Args:
        history: what everybody was told.
        stored: what a fresh reader finds, by rollout.
        silence_s: a holder that was silent for longer than this may have lost its claims: less than the lease, for
            renewals take their time.
    """
    return _Check(history, stored, silence_s).run()
