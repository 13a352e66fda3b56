"""The contract, against what everybody was told and what the directory holds. Pure: values in, violations out."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from tests.crash.lab.journal import ACKNOWLEDGED, Call, Clear, History, Merge, Quiet

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
        outstanding: claims that are open: of a worker that Ray began when all others were through, say.
    """

    generation: int
    calls: list[tuple[str, str]]
    reasons: dict[str, int] | None = None
    damaged: int = 0
    outstanding: int = 0


GIVEN_UP_S = 120.0
"""A clear that nobody was told of may have come to pass so much later, and no more."""


class _Check:
    def __init__(self, history: History, stored: dict[str, Stored], silence_s: float) -> None:
        self.history = history
        self.stored = stored
        self.silence_s = silence_s
        self.violations: list[Violation] = []
        self.by_rollout: defaultdict[str, list[Call]] = defaultdict(list)
        self.by_generation: defaultdict[tuple[str, int | None], list[Call]] = defaultdict(list)
        self.by_token: defaultdict[tuple[str, int | None], list[Call]] = defaultdict(list)
        self.clears: defaultdict[str, list[Clear]] = defaultdict(list)
        self.cleared_from: dict[str, float] = {}
        for call in history.calls.values():
            self.by_rollout[call.rollout].append(call)
            self.by_generation[call.rollout, call.told_generation].append(call)
            self.by_token[call.rollout, call.generation].append(call)
        for clear in history.clears:
            self.clears[clear.rollout].append(clear)

    def say(self, kind: str, what: str) -> None:
        self.violations.append(Violation(kind, what))

    def run(self) -> list[Violation]:
        quiets: defaultdict[str | None, list[Quiet]] = defaultdict(list)
        for call in self.history.calls.values():
            if call.error is not None:
                self.say(ERROR, f"call {call.call_id}: {call.error}")
        for quiet in self.history.quiets:
            quiets[quiet.rollout].append(quiet)
        for rollout, asked in quiets.items():
            self._quiets(asked, self.history.calls.values() if rollout is None else self.by_rollout.get(rollout, ()))
        for merge in self.history.merges:
            self._merge(merge)
        for rollout in sorted({*self.by_rollout, *self.clears, *self.stored}):
            self._at_rest(rollout, self.stored.get(rollout) or Stored(0, []))
        return self.violations

    # -- while it ran -------------------------------------------------------------------------------------------

    def _quiets(self, quiets: list[Quiet], calls: Iterable[Call]) -> None:
        """All answers about the same calls, by when they were asked for: what was over then is over for all later."""
        claimed = sorted((call.claimed_at, call.call_id, call) for call in calls if call.claimed_at is not None)
        number = 0
        open_calls: list[Call] = []
        for quiet in sorted(quiets, key=lambda each: each.asked_at):
            while number < len(claimed) and claimed[number][0] < quiet.asked_at:
                open_calls.append(claimed[number][2])
                number += 1
            open_calls = [call for call in open_calls if not self._over(call, quiet.asked_at)]
            for call in open_calls:
                if not self._over(call, quiet.told_at):
                    self.say(
                        EARLY,
                        f"{quiet.rollout or 'the run'} from {quiet.asked_at:.3f} to {quiet.told_at:.3f}: call "
                        f"{call.call_id} is claimed since {call.claimed_at:.3f} and open",
                    )

    def _over(self, call: Call, at: float) -> bool:
        """Whether the call's claim may have come to its end by then, in any way."""
        if call.closing_at is not None and call.closing_at <= at:
            return True
        # What kept its holder silent before it was told of the claim is no excuse: the claim was open then.
        assert call.claimed_at is not None
        return self._cleared(call, at) or self._excused(call, at, call.claimed_at)

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
        for call in self.by_generation.get((merge.rollout, merge.generation), ()):
            if call.call_id in found:
                continue
            if _acknowledged(call) and call.told_at is not None and call.told_at < merge.asked_at:
                self.say(LOST, f"{what}: {call.call_id} was acknowledged at {call.told_at:.3f} and is not in it")
            elif call.claimed_at is not None and call.claimed_at < merge.asked_at and not codes:
                self.say(FORGOTTEN, f"{what}: {call.call_id} is claimed since {call.claimed_at:.3f}, no gap says so")
        lost = lost_in(merge)
        excused = lost and sum(
            self._excused(call, merge.told_at)
            for generation in (None, merge.generation)
            for call in self.by_token.get((merge.rollout, generation), ())
        )
        if lost > excused:
            self.say(UNFOUNDED, f"{what}: {lost} lost, but only {excused} had a holder that was silent or gone")

    # -- at rest ------------------------------------------------------------------------------------------------

    def _at_rest(self, rollout: str, stored: Stored) -> None:
        what = f"directory, rollout {rollout}"
        told = [each.generation for each in self.clears.get(rollout, ()) if each.generation]
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
            elif call.claimed_at is not None and call.outcome != "fenced":
                if stored.reasons or stored.outstanding:
                    continue
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

    def _excused(self, call: Call, until: float, since: float | None = None) -> bool:
        """Whether the call's claim may have been lost by then, for its holder was silent, cut off or dead."""
        since = call.asked_at if since is None else since
        return self.history.silent(call.holder, since, until, self.silence_s)

    def _cleared(self, call: Call, before: float) -> bool:
        """Whether its generation may have ended by then."""
        if call.call_id not in self.cleared_from:
            asked = (clear.asked_at for clear in self.clears.get(call.rollout, ()) if _may_fence(clear, call))
            self.cleared_from[call.call_id] = min(asked, default=math.inf)
        return self.cleared_from[call.call_id] <= before


def _may_fence(clear: Clear, call: Call) -> bool:
    """Whether a clear may have ended the call's generation. It may be told of before the claim that it fences is."""
    if clear.told_at is None or clear.generation is None:
        return clear.asked_at + GIVEN_UP_S >= call.asked_at
    return clear.told_at >= call.asked_at and clear.generation > (call.told_generation or 0)


def _acknowledged(call: Call) -> bool:
    return call.outcome in ACKNOWLEDGED


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
