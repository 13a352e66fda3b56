"""The ledger against a plain model: any order of claims, commits, clears, lost groups, leases and restarts."""

from __future__ import annotations

import pickle
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, rule

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
        self.unknown: dict[str, set[object]] = {}
        self.absent: dict[str, set[object]] = {}
        self.marked: Counter[str] = Counter()
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
            self.absent[rollout].remove(key)
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
            if generation < current:
                return Outcome.FENCED, generation, -1
            self.mark_unknown(kind, rollout, key, rest, sequence)
            return Outcome.UNKNOWN_GENERATION, generation, -1
        if kind == "claim":
            if key in self.open:
                return Outcome.DUPLICATE, current, -1
            self.open[key] = rollout
            return Outcome.APPLIED, current, -1
        if kind == "release":
            if self.close(key, rollout, sequence) and rest[0]:
                self.count(rollout, rest[0])
                self.absent.setdefault(rollout, set()).add(key)
            return Outcome.APPLIED, current, -1
        if kind == "mark":
            self.count(rollout, *rest)
            self.marked[rollout] += rest[1] if rest[0] else 0
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
            self.absent.setdefault(rollout, set()).add(call)
            return Outcome.TOO_LARGE, current, -1
        if call in known:
            if (call, digest) not in self.conflicts.setdefault(rollout, set()):
                self.conflicts[rollout].add((call, digest))
                self.count(rollout, "refused")
            return Outcome.CONFLICT, current, -1
        index = len(known)
        self.exchanges.setdefault(rollout, {})[call] = digest
        return Outcome.APPLIED, current, index

    def mark_unknown(self, kind: str, rollout: str, key: tuple[bytes, int], rest: list[Any], sequence: int) -> None:
        """Under a token that was never handed out: what is missing is missing, and said once for each call."""
        if kind == "mark":
            self.count(rollout, *rest)
            self.marked[rollout] += rest[1] if rest[0] else 0
            self.held.append((sequence, rollout))
        elif kind != "release":
            call: Any = f"{key[0].hex()}:{key[1]}" if kind == "claim" else rest[0]
            if call not in self.unknown.setdefault(rollout, set()):
                self.unknown[rollout].add(call)
                self.count(rollout, "refused")
                self.absent.setdefault(rollout, set()).add(call)

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
        for kept in (
            self.exchanges,
            self.reasons,
            self.conflicts,
            self.absent,
            self.marked,
            self.merged,
            self.issued,
            self.unknown,
        ):
            kept.pop(rollout, None)
        return Outcome.APPLIED, self.generation[rollout], -1

    def lose(self, key: tuple[bytes, int], sequence: int) -> None:
        rollout = self.open.pop(key)
        self.lost[key] = rollout
        self.held.append((sequence, rollout))
        self.count(rollout, "lost")
        self.absent.setdefault(rollout, set()).add(key)

    def reasons_of(self, rollout: str) -> dict[str, int] | None:
        reasons = {reason: count for reason, count in self.reasons.get(rollout, {}).items() if count}
        exchanges = self.exchanges.get(rollout, {})
        absent = len(self.absent.get(rollout, set()) - exchanges.keys())
        seen = len(exchanges) + absent + self.marked[rollout] + list(self.open.values()).count(rollout)
        missing = self.issued[rollout] - seen
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


CALLS = ["c1", "c2", "c3", "c4", "c5"]
DIGESTS = [b"x", b"x", b"x", b"y"]

T = TypeVar("T")


class Choices(Protocol):
    """Where a history's choices come from: drawn by Hypothesis (which shrinks), or a seed (which goes far)."""

    def one(self, options: Sequence[T]) -> T:
        """One of them."""


class Drawn:
    """Choices of Hypothesis."""

    def __init__(self, data: st.DataObject) -> None:
        self._data = data

    def one(self, options: Sequence[T]) -> T:
        return self._data.draw(st.sampled_from(options))


class Seeded:
    """Choices of a seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def one(self, options: Sequence[T]) -> T:
        return self._random.choice(options)


KINDS = ["claim", "claim", "commit", "commit", "commit", "release", "mark", "too large"]
GENERATIONS = [CURRENT, CURRENT, CURRENT, 0, 1, 2, 3]


class History:
    """A ledger and the model, taken through the same steps and compared after each."""

    def __init__(self) -> None:
        self.owner = Owner()
        self.plain = Plain()
        self.durable = 0
        self.past = {0: pickle.dumps(self.plain)}
        self.answered: set[tuple[bytes, int]] = set()
        self.shadow, self.shadowed = replayed([]), 0
        self.deadlines: dict[bytes, float | None] = {}
        self.numbers: Counter[bytes] = Counter()
        self.sent: list[tuple[bytes, int, list[Op]]] = []
        self.batches: Counter[bytes] = Counter()
        self.seen: Counter[str] = Counter()

    # -- batches ------------------------------------------------------------------------------------------------

    def batch(self, choose: Choices) -> None:
        client = choose.one(CLIENTS)
        self.send_new(client, [self.op(client, choose) for _ in range(choose.one([1, 1, 2, 3]))], choose)

    def clear(self, choose: Choices) -> None:
        client = choose.one(CLIENTS)
        self.send_new(client, [("clear", choose.one(ROLLOUTS), choose.one(["", "r1", "r2"]))], choose)

    def op(self, client: bytes, choose: Choices) -> Op:
        kind, rollout = choose.one(KINDS), choose.one(ROLLOUTS)
        # Mostly the token of the generation that is current, or none.
        generation = choose.one([*GENERATIONS, *[self.plain.generation[rollout]] * 7])
        if kind == "claim":
            self.numbers[client] += 1
            return "claim", rollout, generation, self.numbers[client]
        if kind == "mark":
            return "mark", rollout, generation, 0, choose.one(["dropped", ""]), choose.one([1, 2, 3])
        number = max(1, self.numbers[client] - choose.one([0, 1, 2, 3, 4, 5]))
        claims = {**self.plain.open, **self.plain.lost}
        own = sorted((number, where) for (holder, number), where in claims.items() if holder == client)
        sound: bool = choose.one([True, True, False])
        if own and sound:
            # What a sound client does: it closes a claim that it has made, lost or not.
            number, rollout = choose.one(own)
        if kind == "release":
            return "release", rollout, generation, number, choose.one(["released", "dropped", ""])
        return kind, rollout, generation, choose.one([number, number, 0]), choose.one(CALLS), choose.one(DIGESTS)

    def send_new(self, client: bytes, ops: list[Op], choose: Choices) -> None:
        self.batches[client] += 1
        self.sent.append((client, self.batches[client], ops))
        # Only what is durable was answered, and only what was answered can be confirmed, in order.
        confirmed = self.plain.confirmed[client]
        while choose.one([True, False]) and (client, confirmed + 1) in self.answered:
            confirmed += 1
        self.send(client, self.batches[client], ops, confirmed)

    def batch_again(self, choose: Choices) -> None:
        if self.sent:
            client, batch, ops = choose.one(self.sent[-20:])
            self.send(client, batch, ops, self.plain.confirmed[client])

    def send(self, client: bytes, batch: int, ops: list[Op], confirmed: int) -> None:
        answer = self.owner.apply(client, batch, confirmed, [row_of(op) for op in ops])
        self.deadlines[client] = self.owner.now + LEASE_S
        plain = self.plain
        if batch <= plain.confirmed[client]:
            assert answer == Repeated(0, None)
            self.seen["repeated, confirmed"] += 1
            return
        if (client, batch) in plain.answers:
            sequence, results = plain.answers[client, batch]
            assert isinstance(answer, Repeated)
            assert answer.sequence == sequence
            assert tuples(answer.results) == results
            self.seen["repeated"] += 1
            return
        assert isinstance(answer, Applied)
        sequence = self.owner.ledger.last_sequence
        lost = len(plain.lost)
        expected = [plain.ask(client, op, sequence) for op in ops]
        assert tuples(answer.results) == expected
        plain.answers[client, batch] = (sequence, expected)
        plain.confirmed[client] = max(plain.confirmed[client], min(confirmed, batch - 1))
        self.seen["loss retracted"] += len(plain.lost) < lost and ops[0][0] != "clear"
        self.seen.update(f"{op[0]}: {Outcome(result[0]).name}" for op, result in zip(ops, expected, strict=True))
        self.applied(sequence)

    def applied(self, sequence: int) -> None:
        self.past[sequence] = pickle.dumps(self.plain)

    # -- the owner ----------------------------------------------------------------------------------------------

    def sync(self, choose: Choices) -> None:
        """Groups become durable one by one, some frames each."""
        last = self.owner.ledger.last_sequence
        sequence = choose.one([last, *range(min(self.durable, last), last + 1)])
        settled = self.owner.sync(sequence)
        touched = {rollout for at, rollout in self.plain.held if self.durable < at <= sequence}
        self.durable = sequence
        self.answered |= {key for key, (at, _) in self.plain.answers.items() if at <= sequence}
        quiet = {rollout for rollout in touched if not self.plain.outstanding(rollout, sequence)}
        assert sorted(settled.rollouts) == sorted(quiet)
        assert settled.run == bool(touched and not self.total())
        self.seen["settled"] += bool(quiet)
        self.seen["not settled"] += bool(touched - quiet)
        self.seen["run settled"] += settled.run

    def fail(self, choose: Choices) -> None:
        """A group could not be written, or the process ended: what is not durable never happened."""
        self.seen["lost frames"] += self.owner.ledger.last_sequence - self.durable
        self.owner.restart()
        self.plain = pickle.loads(self.past[self.durable])
        self.shadow, self.shadowed = replayed([]), 0
        for client in CLIENTS:
            known = any(holder == client for holder, _ in self.plain.answers)
            self.deadlines[client] = self.owner.now + LEASE_S if known else None

    def owner_clears(self, choose: Choices) -> None:
        row = ClearRow(choose.one(ROLLOUTS), choose.one(["", "r1", "owner"]))
        self.owner.write([row])
        sequence = self.owner.ledger.last_sequence
        assert (row.outcome, row.generation, -1) == self.plain.clear(row.rollout, row.request, sequence)
        self.applied(sequence)

    def merge(self, choose: Choices) -> None:
        rollout, issued = choose.one(ROLLOUTS), choose.one(range(9))
        row = self.owner.ledger.merge_row(rollout, issued)
        self.owner.write([row])
        exchanges = len(self.plain.exchanges.get(rollout, {}))
        assert (row.generation, row.returned) == (self.plain.generation[rollout], exchanges)
        self.plain.merged[rollout] = exchanges
        self.plain.issued[rollout] = max(self.plain.issued[rollout], issued)
        self.applied(self.owner.ledger.last_sequence)

    # -- leases -------------------------------------------------------------------------------------------------

    def time_passes(self, choose: Choices) -> None:
        self.owner.now += choose.one([0.5, 3.0, 5.9, 6.0])
        losses = self.owner.ledger.expire(self.owner.now)
        gone = [client for client, end in self.deadlines.items() if end is not None and end <= self.owner.now]
        for client in gone:
            self.deadlines[client] = None
        self.lost(losses, {key for key in self.plain.open if key[0] in gone})

    def client_says_hello(self, choose: Choices) -> None:
        client = choose.one(CLIENTS)
        held = sorted(number for holder, number in self.plain.open if holder == client)
        known = {number for number in held if choose.one([True, True, False])}
        losses = self.owner.ledger.hello(client, known, self.owner.now)
        self.deadlines[client] = self.owner.now + LEASE_S
        self.lost(losses, {(client, number) for number in held if number not in known})

    def client_leaves(self, choose: Choices) -> None:
        client = choose.one(CLIENTS)
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
            self.seen["losses"] += 1

    # -- what must hold -----------------------------------------------------------------------------------------

    def total(self) -> int:
        return sum(self.plain.outstanding(rollout, self.durable) for rollout in ROLLOUTS)

    def check(self) -> None:
        ledger, plain = self.owner.ledger, self.plain
        assert ledger.outstanding == self.total()
        assert {(c.client, c.number): c.rollout.id for c in ledger.open_claims()} == plain.open
        for rollout in ROLLOUTS:
            assert ledger.outstanding_of(rollout) == plain.outstanding(rollout, self.durable)
            view = ledger.view(rollout)
            assert view.generation == plain.generation[rollout]
            kept = list(plain.exchanges.get(rollout, {}).items())
            assert [(entry.model_call_id, entry.digest) for entry in view.entries] == kept
            assert [entry.call_index for entry in view.entries] == list(range(len(kept)))
            assert all(entry.parts == PARTS for entry in view.entries)
            assert view.holes == 0
            assert view.reasons == plain.reasons_of(rollout)
            assert view.outstanding == list(plain.open.values()).count(rollout)
        assert ledger.late == sum(plain.late(rollout) for rollout in ROLLOUTS)
        # And the log says the same.
        for frame in self.owner.frames[self.shadowed :]:
            replay(self.shadow, frame)
        self.shadowed = len(self.owner.frames)
        assert state_of(self.shadow) == state_of(ledger)


class LedgerMachine(RuleBasedStateMachine):
    """Histories that Hypothesis makes up, and makes short when they fail."""

    def __init__(self) -> None:
        super().__init__()
        self.history = History()

    @rule(data=st.data(), step=st.sampled_from(["batch", "batch", "batch", "batch", "clear"]))
    def clients_work(self, data: st.DataObject, step: str) -> None:
        getattr(self.history, step)(Drawn(data))
        self.history.check()

    @rule(data=st.data(), step=st.sampled_from(["sync", "fail", "batch_again", "merge", "owner_clears"]))
    def the_owner_works(self, data: st.DataObject, step: str) -> None:
        getattr(self.history, step)(Drawn(data))
        self.history.check()

    @rule(data=st.data(), step=st.sampled_from(["time_passes", "client_says_hello", "client_leaves"]))
    def clients_come_and_go(self, data: st.DataObject, step: str) -> None:
        getattr(self.history, step)(Drawn(data))
        self.history.check()


def tuples(results: Any) -> list[tuple[int, int, int]]:
    return [(result.outcome, result.generation, result.call_index) for result in results]


LedgerMachine.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
)
TestLedgerMachine = LedgerMachine.TestCase

STEPS = [
    *["batch"] * 12,
    *["sync"] * 5,
    *["batch_again", "merge", "time_passes", "client_says_hello"] * 2,
    "clear",
    "owner_clears",
    "fail",
    "client_leaves",
]


def run(seed: int, steps: int = 300) -> History:
    choose, history = Seeded(seed), History()
    for _ in range(steps):
        getattr(history, choose.one(STEPS))(choose)
        history.check()
    return history


@pytest.mark.parametrize("seed", range(20))
def test_a_long_history_follows_the_model(seed: int) -> None:
    run(seed)


def test_long_histories_meet_everything_that_can_happen() -> None:
    seen: Counter[str] = Counter()
    for seed in range(100, 115):
        seen += run(seed).seen
    refusals = [f"{kind}: {outcome}" for kind in ("claim", "commit", "release") for outcome in ("FENCED", "APPLIED")]
    expected = [
        "commit: DUPLICATE",
        "commit: CONFLICT",
        "too large: TOO_LARGE",
        "commit: UNKNOWN_GENERATION",
        *refusals,
    ]
    expected += [
        "clear: APPLIED",
        "clear: DUPLICATE",
        "mark: APPLIED",
        "repeated",
        "repeated, confirmed",
        "lost frames",
    ]
    expected += ["settled", "not settled", "run settled", "losses", "loss retracted"]
    assert {name: seen[name] for name in expected if seen[name] < 3} == {}
