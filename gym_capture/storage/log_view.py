"""The log of a directory as a reader knows it: opened behind a checkpoint where there is one, and kept up to date."""

from __future__ import annotations

from typing import Any

from gym_capture.errors import DamagedLog
from gym_capture.model.ledger import Ledger
from gym_capture.model.pages import ArchivedPage, unpack_archived
from gym_capture.model.rollout_state import RolloutState, RolloutView
from gym_capture.storage.checkpoints import read_rollout
from gym_capture.storage.files import Files
from gym_capture.storage.log_plan import plan_log
from gym_capture.storage.log_scan import replay_log
from gym_capture.storage.recovery_report import RecoveryReport
from gym_capture.storage.resume import open_log
from gym_capture.storage.standing import OpenClaim, RolloutStanding, claim_of, standing_of, standing_of_page


class LogView:
    """What the log says of each rollout. Reads only; blocks; not safe for threads.

    A rollout that nothing happened to since the checkpoint is read when it is asked for, and not kept: whoever goes
    through a whole directory needs no more memory for that. Whenever a checkpoint turns out to be damaged, the whole
    log is read instead, for as long as this view lives.
    """

    def __init__(self, files: Files, *, checkpoints: bool = True) -> None:
        self._files = files
        self._checkpoints = checkpoints
        self.load()

    @property
    def report(self) -> RecoveryReport:
        """What reading the log found so far."""
        return self._opened.scan.report

    @property
    def outstanding(self) -> int:
        """Claims of the whole run that are open."""
        return self._ledger.outstanding

    @property
    def others_damaged(self) -> bool:
        """Whether an end of the log is gone, so that nobody can say of an unknown rollout that it had nothing."""
        return self._ledger.others_damaged

    @property
    def takeovers(self) -> tuple[Any, ...]:
        """The epochs, and where those before the last were cut: as long as it is the same, nothing was cut off."""
        plan = self._opened.scan.plan
        return tuple(plan.epochs), tuple(sorted(plan.cuts.items()))

    def load(self) -> None:
        """Read anew."""
        self._ledger = Ledger()
        self._last: tuple[bytes, RolloutState] | None = None
        # Nothing leaves a reader's memory, so what is archived never changes but by coming back.
        self._lacking: dict[str, RolloutStanding] = {}
        plan = plan_log(self._files)
        self._opened = open_log(self._files, plan, self._ledger, checkpoints=self._checkpoints)

    def refresh(self) -> None:
        """Take in what was appended since: only that is read, unless another owner has taken over."""
        scan = self._opened.scan
        plan = plan_log(self._files, known=scan.plan)
        if not scan.goes_on(plan):
            self.load()
            return
        scan.proceed(plan)
        if self._opened.checkpoint is None:
            replay_log(scan, self._opened.fold)
            return
        try:
            replay_log(scan, self._opened.fold)
            sound = not (scan.report.damages or scan.report.headers)
        except (DamagedLog, OSError):
            sound = False
        if not sound:
            self._load_all()

    def state(self, rollout_id: str) -> RolloutState | None:
        """One rollout, to be looked at only; None: the log has no row of it."""
        packed = self._ledger.archived.get(rollout_id)
        if packed is None:
            return self._ledger.rollouts.get(rollout_id)
        if self._last is None or self._last[0] != packed or self._last[1].id != rollout_id:
            try:
                self._last = (packed, read_rollout(self._files, rollout_id, packed))
            except (DamagedLog, OSError):
                self._load_all()
                return self._ledger.rollouts.get(rollout_id)
        return self._last[1]

    def view(self, rollout_id: str) -> RolloutView:
        """A snapshot of one rollout; an unknown one is empty."""
        state = self.state(rollout_id)
        return state.view() if state is not None else self._ledger.view(rollout_id)

    def page_of(self, rollout_id: str) -> bytes | None:
        """Where its page lies, while that says all of it: the same as long as nothing came to it. None: it does not."""
        return self._ledger.archived.get(rollout_id)

    def knows(self, rollout_id: str) -> bool:
        """Whether the log knows it (`RolloutState.known`)."""
        archived = self._archived(rollout_id)
        if archived is not None:
            return archived.known
        state = self._ledger.rollouts.get(rollout_id)
        return state is not None and state.known

    def generation(self, rollout_id: str) -> int:
        """Its current generation, 0 until it is first cleared."""
        archived = self._archived(rollout_id)
        return archived.generation if archived is not None else self._ledger.view(rollout_id).generation

    def is_incomplete(self, rollout_id: str) -> bool:
        """Whether evidence is known to be missing."""
        archived = self._archived(rollout_id)
        return archived.incomplete if archived is not None else self._ledger.view(rollout_id).reasons is not None

    def standings(self) -> list[RolloutStanding]:
        """How every rollout stands, in no order. Of those that are on disk only, those that lack something are read."""
        opened, ledger = self._opened, self._ledger
        found = [standing_of(state) for state in ledger.rollouts.values()]
        found += [self.standing(rollout_id) for rollout_id in ledger.archived.packed]
        # A page that could not be read: all of the log was read instead, and the rows may be more by now.
        return found if self._opened is opened else self.standings()

    def standing(self, rollout_id: str) -> RolloutStanding:
        """How one rollout stands; an unknown one has nothing."""
        archived = self._archived(rollout_id)
        if archived is not None and archived.plain:
            return standing_of_page(rollout_id, archived)
        if archived is not None and (known := self._lacking.get(rollout_id)) is not None:
            return known
        state = self.state(rollout_id)
        if state is None:
            return RolloutStanding(rollout_id, 0, 0, reasons=self._ledger.view(rollout_id).reasons)
        standing = standing_of(state)
        if rollout_id in self._ledger.archived:
            self._lacking[rollout_id] = standing
        return standing

    def open_claims(self, rollout_id: str | None = None) -> list[OpenClaim]:
        """The claims that are open, of one rollout or (None) of the whole log: whoever has any is in memory."""
        if rollout_id is None:
            return [claim_of(claim) for claim in self._ledger.open_claims()]
        state = self._ledger.rollouts.get(rollout_id)
        return [] if state is None else [claim_of(claim) for claim in state.open.values()]

    def outstanding_of(self, rollout_id: str) -> int:
        """Its claims that are open."""
        return self._ledger.outstanding_of(rollout_id)

    def with_evidence(self) -> set[str]:
        """The rollouts that have anything in their current generation."""
        archived = self._ledger.archived.packed
        return {state.id for state in self._ledger.rollouts.values() if state.has_evidence} | {
            rollout_id for rollout_id, packed in archived.items() if unpack_archived(packed).evidence
        }

    def _archived(self, rollout_id: str) -> ArchivedPage | None:
        packed = self._ledger.archived.get(rollout_id)
        return None if packed is None else unpack_archived(packed)

    def _load_all(self) -> None:
        self._checkpoints = False
        self.load()
