"""The ledger against a plain model: any order of claims, commits, clears, lost groups, leases and restarts."""

from __future__ import annotations

import pickle
from collections import Counter
from typing import Any

import hypothesis.strategies as st
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gym_capture.model.ledger import Applied, Repeated
from gym_capture.model.rows import CURRENT, ClearRow, ClientRow, CommitRow, LossRow, MarkRow, Outcome, Part, ReleaseRow
from tests.model.ledgers import LEASE_S, A, B, Owner, claim, replay, replayed, state_of

CLIENTS = [A, B]
ROLLOUTS = ["0-0", "0-1"]
PARTS = [Part(0, 0, 0, 1, 1, 1)]

Op = tuple[Any, ...]
"""What a client asks for, as plain values, so that it can be asked again."""


class Plain:
    """The rules written down once more: dicts, sets and counters, nothing shared with the ledger."""

    def __init__(self) -> None:
        self.generation: Counter[str] = Counter()
        self.exchanges: dict[str, dict[str, bytes]] = {}
        self.reasons: dict[str, Counter[str]] = {}
        self.open: dict[tuple[bytes, int], str] = {}
        self.lost: dict[tuple[bytes, int], str] = {}
        self.conflicts: dict[str, set[tuple[str, bytes]]] = {}
        self.tokens: dict[tuple[str, str], int] = {}
        self.merged: dict[str, int] = {}
        self.issued: Counter[str] = Counter()
        self.answers: dict[tuple[bytes, int], tuple[int, list[tuple[int, int, int]]]] = {}
        self.confirmed: Counter[bytes] = Counter()
        self.held: list[tuple[int, str]] = []

    def outstanding(self, rollout: str, durable: int) -> int:
        on_their_way = sum(1 for sequence, held in self.held if held == rollout and sequence > durable)
        return on_their_way + list(self.open.values()).count(rollout)

    def count(self, rollout: str, reason: str, count: int = 1) -> None:
        self.reasons.setdefault(rollout, Counter())[reason] += count

    def close(self, key: tuple[bytes, int], rollout: str, sequence: int) -> bool:
        if self.open.get(key) == rollout:
            del self.open[key]
        elif self.lost.get(key) == rollout:
            del self.lost[key]
            self.count(rollout, "lost", -1)
        else:
            return False
        self.held.append((sequence, rollout))
        return True

    def ask(self, client: bytes, op: Op, sequence: int) -> tuple[int, int, int]:
        kind, rollout, *rest = op
        if kind == "clear":
            return self.clear(rollout, rest[0], sequence)
        generation, number, *rest = rest
        key = (client, number)
        current = self.generation[rollout]
        known = self.exchanges.get(rollout, {})
        if generation == CURRENT:
            generation = current
            followed = number and self.open.get(key) != rollout and self.lost.get(key) != rollout
            if kind in ("commit", "too large") and current and followed and rest[0] not in known:
                generation = current - 1
        if generation != current:
            if kind != "claim" and self.open.get(key) == rollout:
                self.close(key, rollout, sequence)
                self.count(rollout, "refused")
            return (Outcome.FENCED if generation < current else Outcome.UNKNOWN_GENERATION), generation, -1
        if kind == "claim":
            if key in self.open:
                return Outcome.DUPLICATE, current, -1
            self.open[key] = rollout
            return Outcome.APPLIED, current, -1
        if kind == "release":
            if self.close(key, rollout, sequence) and rest[0]:
                self.count(rollout, rest[0])
            return Outcome.APPLIED, current, -1
        if kind == "mark":
            self.count(rollout, *rest)
            self.held.append((sequence, rollout))
            return Outcome.APPLIED, current, -1
        closed = bool(number) and self.close(key, rollout, sequence)
        call, digest = rest
        if kind == "commit" and known.get(call) == digest:
            return Outcome.DUPLICATE, current, list(known).index(call)
        if not closed:
            self.held.append((sequence, rollout))
        if kind == "too large":
            self.count(rollout, "refused")
            return Outcome.TOO_LARGE, current, -1
        if call in known:
            if (call, digest) not in self.conflicts.setdefault(rollout, set()):
                self.conflicts[rollout].add((call, digest))
                self.count(rollout, "refused")
            return Outcome.CONFLICT, current, -1
        index = len(known)
        self.exchanges.setdefault(rollout, {})[call] = digest
        return Outcome.APPLIED, current, index

    def clear(self, rollout: str, request: str, sequence: int) -> tuple[int, int, int]:
        if (rollout, request) in self.tokens:
            return Outcome.DUPLICATE, self.tokens[rollout, request], -1
        self.generation[rollout] += 1
        if request:
            self.tokens[rollout, request] = self.generation[rollout]
        for key in [key for key, held in self.open.items() if held == rollout]:
            del self.open[key]
            self.held.append((sequence, rollout))
        for key in [key for key, held in self.lost.items() if held == rollout]:
            del self.lost[key]
        for kept in (self.exchanges, self.reasons, self.conflicts, self.merged, self.issued):
            kept.pop(rollout, None)
        return Outcome.APPLIED, self.generation[rollout], -1

    def lose(self, key: tuple[bytes, int], sequence: int) -> None:
        rollout = self.open.pop(key)
        self.lost[key] = rollout
        self.held.append((sequence, rollout))
        self.count(rollout, "lost")

    def reasons_of(self, rollout: str) -> dict[str, int] | None:
        reasons = {reason: count for reason, count in self.reasons.get(rollout, {}).items() if count}
        seen = len(self.exchanges.get(rollout, {})) + list(self.open.values()).count(rollout)
        missing = self.issued[rollout] - seen - sum(count for reason, count in reasons.items() if reason)
        if missing > 0:
            reasons["unaccounted"] = missing
        return reasons or None

    def late(self, rollout: str) -> int:
        return len(self.exchanges.get(rollout, {})) - self.merged[rollout] if rollout in self.merged else 0


def row_of(op: Op) -> ClientRow:
    kind, rollout, *rest = op
    if kind == "clear":
        return ClearRow(rollout, rest[0])
    generation, number, *rest = rest
    if kind == "claim":
        return claim(number, rollout, generation)
    if kind == "release":
        return ReleaseRow(rollout, number, rest[0], generation)
    if kind == "mark":
        return MarkRow(rollout, rest[0], rest[1], generation)
    outcome = Outcome.TOO_LARGE if kind == "too large" else Outcome.APPLIED
    return CommitRow(rollout, number, rest[0], rest[1], list(PARTS), generation, outcome=outcome)


rollouts = st.sampled_from(ROLLOUTS)
clients = st.sampled_from(CLIENTS)
generations = st.sampled_from([CURRENT, CURRENT, CURRENT, CURRENT, 0, 1, 2, 3])
call_ids = st.sampled_from(["c1", "c2", "c3", "c4"])
digests = st.sampled_from([b"x", b"x", b"y"])
back = st.integers(0, 5)
"""Which of the client's claims: 0 is the newest; a claim that it has not made is none."""


class LedgerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.owner = Owner()
        self.plain = Plain()
        self.durable = 0
        self.past = {0: pickle.dumps(self.plain)}
        self.answered: set[tuple[bytes, int]] = set()
        self.shadow = replayed([])
        self.shadowed = 0
        self.deadlines: dict[bytes, float | None] = {}
        self.numbers: Counter[bytes] = Counter()
        self.sent: list[tuple[bytes, int, list[Op]]] = []
        self.batches: Counter[bytes] = Counter()

    # -- batches ------------------------------------------------------------------------------------------------

    def ops(self, client: bytes, data: st.DataObject) -> list[Op]:
        found: list[Op] = []
        for kind in data.draw(
            st.lists(
                st.sampled_from(
                    ["claim", "claim", "commit", "commit", "commit", "release", "mark", "clear", "too large"]
                ),
                min_size=1,
                max_size=4,
            )
        ):
            rollout, generation = data.draw(rollouts), data.draw(generations)
            if kind == "claim":
                self.numbers[client] += 1
                found.append(("claim", rollout, generation, self.numbers[client]))
                continue
            number = max(0, self.numbers[client] - data.draw(back))
            if kind == "release":
                if number:
                    reason = data.draw(st.sampled_from(["released", "dropped", ""]))
                    found.append(("release", rollout, generation, number, reason))
            elif kind == "mark":
                reason = data.draw(st.sampled_from(["dropped", ""]))
                found.append(("mark", rollout, generation, 0, reason, data.draw(st.integers(1, 3))))
            elif kind == "clear":
                found.append(("clear", rollout, data.draw(st.sampled_from(["", "r1", "r2"]))))
            else:
                number = data.draw(st.sampled_from([0, number]))
                found.append((kind, rollout, generation, number, data.draw(call_ids), data.draw(digests)))
        return found

    @rule(client=clients, data=st.data(), confirm=st.booleans())
    def batch(self, client: bytes, data: st.DataObject, confirm: bool) -> None:
        self.batches[client] += 1
        batch = self.batches[client]
        ops = self.ops(client, data)
        self.sent.append((client, batch, ops))
        # Only what is durable was answered, and only what was answered can be confirmed, in order.
        confirmed = self.plain.confirmed[client]
        while confirm and (client, confirmed + 1) in self.answered:
            confirmed += 1
        self.send(client, batch, ops, confirmed)

    @rule(data=st.data())
    def batch_again(self, data: st.DataObject) -> None:
        if self.sent:
            client, batch, ops = data.draw(st.sampled_from(self.sent))
            self.send(client, batch, ops, self.plain.confirmed[client])

    def send(self, client: bytes, batch: int, ops: list[Op], confirmed: int) -> None:
        answer = self.owner.apply(client, batch, confirmed, [row_of(op) for op in ops])
        self.deadlines[client] = self.owner.now + LEASE_S
        plain = self.plain
        if batch <= plain.confirmed[client]:
            assert answer == Repeated(0, None)
            return
        if (client, batch) in plain.answers:
            sequence, results = plain.answers[client, batch]
            assert isinstance(answer, Repeated)
            assert answer.sequence == sequence
            assert tuples(answer.results) == results
            return
        assert isinstance(answer, Applied)
        sequence = self.owner.ledger.last_sequence
        expected = [plain.ask(client, op, sequence) for op in ops]
        assert tuples(answer.results) == expected
        plain.answers[client, batch] = (sequence, expected)
        plain.confirmed[client] = max(plain.confirmed[client], min(confirmed, batch - 1))
        self.applied(sequence)

    def applied(self, sequence: int) -> None:
        self.past[sequence] = pickle.dumps(self.plain)

    # -- the owner ----------------------------------------------------------------------------------------------

    @rule(data=st.data())
    def sync(self, data: st.DataObject) -> None:
        """Groups become durable one by one, some frames each."""
        last = self.owner.ledger.last_sequence
        sequence = data.draw(st.integers(min(self.durable, last), last))
        settled = self.owner.sync(sequence)
        touched = {rollout for at, rollout in self.plain.held if self.durable < at <= sequence}
        self.durable = sequence
        self.answered |= {key for key, (at, _) in self.plain.answers.items() if at <= sequence}
        quiet = {rollout for rollout in touched if not self.plain.outstanding(rollout, sequence)}
        assert sorted(settled.rollouts) == sorted(quiet)
        assert settled.run == bool(touched and not self.total())

    @rule()
    def fail_or_restart(self) -> None:
        """What is not durable never happened."""
        self.owner.restart()
        self.plain = pickle.loads(self.past[self.durable])
        self.shadow, self.shadowed = replayed([]), 0
        for client in CLIENTS:
            known = any(holder == client for holder, _ in self.plain.answers)
            self.deadlines[client] = self.owner.now + LEASE_S if known else None

    @rule(client=clients, request=st.sampled_from(["", "r1", "owner"]), rollout=rollouts)
    def owner_clears(self, client: bytes, request: str, rollout: str) -> None:
        row = ClearRow(rollout, request)
        self.owner.write([row])
        sequence = self.owner.ledger.last_sequence
        assert (row.outcome, row.generation, -1) == self.plain.clear(rollout, request, sequence)
        self.applied(sequence)

    @rule(rollout=rollouts, issued=st.integers(0, 8))
    def merge(self, rollout: str, issued: int) -> None:
        row = self.owner.ledger.merge_row(rollout, issued)
        self.owner.write([row])
        exchanges = len(self.plain.exchanges.get(rollout, {}))
        assert (row.generation, row.returned) == (self.plain.generation[rollout], exchanges)
        self.plain.merged[rollout] = exchanges
        self.plain.issued[rollout] = max(self.plain.issued[rollout], issued)
        self.applied(self.owner.ledger.last_sequence)

    # -- leases -------------------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.5, 3.0, 5.9, 6.0]))
    def time_passes(self, seconds: float) -> None:
        self.owner.now += seconds
        losses = self.owner.ledger.expire(self.owner.now)
        gone = [
            client for client, deadline in self.deadlines.items() if deadline is not None and deadline <= self.owner.now
        ]
        for client in gone:
            self.deadlines[client] = None
        self.lost(losses, {key for key in self.plain.open if key[0] in gone})

    @rule(client=clients, data=st.data())
    def client_says_hello(self, client: bytes, data: st.DataObject) -> None:
        held = sorted(number for holder, number in self.plain.open if holder == client)
        known = data.draw(st.sets(st.sampled_from(held)) if held else st.just(set()))
        losses = self.owner.ledger.hello(client, known, self.owner.now)
        self.deadlines[client] = self.owner.now + LEASE_S
        self.lost(losses, {(client, number) for number in held if number not in known})

    @rule(client=clients)
    def client_leaves(self, client: bytes) -> None:
        losses = self.owner.ledger.leave(client)
        self.deadlines[client] = None
        self.lost(losses, {key for key in self.plain.open if key[0] == client})

    def lost(self, losses: Any, expected: set[tuple[bytes, int]]) -> None:
        assert all(isinstance(loss, LossRow) for loss in losses)
        assert sorted((loss.client, loss.claim) for loss in losses) == sorted(expected)
        self.owner.write(losses)
        sequence = self.owner.ledger.last_sequence
        for key in expected:
            self.plain.lose(key, sequence)
        if expected:
            self.applied(sequence)

    # -- what must hold -----------------------------------------------------------------------------------------

    def total(self) -> int:
        return sum(self.plain.outstanding(rollout, self.durable) for rollout in ROLLOUTS)

    @invariant()
    def outstanding_is_what_the_model_says(self) -> None:
        ledger = self.owner.ledger
        for rollout in ROLLOUTS:
            assert ledger.outstanding_of(rollout) == self.plain.outstanding(rollout, self.durable)
        assert ledger.outstanding == self.total()
        assert {(c.client, c.number): c.rollout.id for c in ledger.open_claims()} == self.plain.open

    @invariant()
    def every_rollout_is_what_the_model_says(self) -> None:
        for rollout in ROLLOUTS:
            view = self.owner.ledger.view(rollout)
            assert view.generation == self.plain.generation[rollout]
            kept = list(self.plain.exchanges.get(rollout, {}).items())
            assert [(entry.model_call_id, entry.digest) for entry in view.entries] == kept
            assert [entry.call_index for entry in view.entries] == list(range(len(kept)))
            assert all(entry.parts == PARTS for entry in view.entries)
            assert view.holes == 0
            assert view.reasons == self.plain.reasons_of(rollout)
            assert view.outstanding == list(self.plain.open.values()).count(rollout)
        assert self.owner.ledger.late == sum(self.plain.late(rollout) for rollout in ROLLOUTS)

    @invariant()
    def the_log_says_the_same(self) -> None:
        for frame in self.owner.frames[self.shadowed :]:
            replay(self.shadow, frame)
        self.shadowed = len(self.owner.frames)
        assert state_of(self.shadow) == state_of(self.owner.ledger)


def tuples(results: Any) -> list[tuple[int, int, int]]:
    return [(result.outcome, result.generation, result.call_index) for result in results]


LedgerMachine.TestCase.settings = settings(
    max_examples=80,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
)
TestLedgerMachine = LedgerMachine.TestCase
