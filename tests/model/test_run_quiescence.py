"""A run of several shards is called quiescent only if at some moment all of them were, whatever happens in between.

Shown by random schedules of three shards, and by every schedule there is of two (up to two claims and one restart
each). Broken askers are found by the same means.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple, Self

import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st

from gym_capture.model.run_quiescence import RunQuiescence, Standing, Verdict


class Shard(NamedTuple):
    """One owner, and the question that it may have. Claims that are open outlive it, what it counts does not."""

    epoch: int = 1
    begun: int = 1
    open: int = 1  # the run is busy when the question is asked
    up: bool = True
    heard: bool = False
    answer: Standing | None = None
    delivered: bool = False

    def claim(self) -> Self:
        return self._replace(open=self.open + 1, begun=self.begun + 1) if self.up else self

    def close(self) -> Self:
        return self._replace(open=self.open - 1) if self.up and self.open else self

    def restart(self) -> Self:
        """It dies, or comes back and counts what is still open."""
        if self.up:
            return self._replace(up=False)
        return self._replace(up=True, epoch=self.epoch + 1, begun=self.open)

    def hear(self) -> Self:
        """The question arrives."""
        return self._replace(heard=True)

    def look(self) -> Self:
        """It answers as soon as it can. The answer is on its way until it is delivered."""
        if self.up and self.heard and self.answer is None and not self.open:
            return self._replace(answer=Standing(self.epoch, self.begun))
        return self

    def asked_anew(self) -> Self:
        return self._replace(heard=False, answer=None, delivered=False)


ACTIONS = ("claim", "close", "restart", "hear", "deliver")
Step = tuple[str, int]


class World(NamedTuple):
    """The shards, what the asker remembers, and whether all shards were at rest at some moment since the question."""

    shards: tuple[Shard, ...]
    question: RunQuiescence
    rested: bool = False
    told: bool = False

    def after(self, step: Step) -> World:
        action, number = step
        shards, question, told = list(self.shards), self.question, False
        shard = shards[number]
        if action != "deliver":
            shards[number] = getattr(shard, action)().look()
        elif shard.answer is not None and not shard.delivered:
            question = copy_of(question)
            shards[number] = shard._replace(delivered=True)
            verdict = question.answer(number, shard.answer)
            told = verdict is Verdict.QUIESCENT
            if verdict is Verdict.ASK_AGAIN:
                shards = [each.asked_anew() for each in shards]
        rested = self.rested or not any(each.open for each in shards)
        return World(tuple(shards), question, rested, told)

    @property
    def key(self) -> object:
        """What tells it from other worlds; which of the shards is which does not."""
        memories = [each for each in vars(self.question).values() if isinstance(each, dict)]
        known = [(shard, *[memory.get(number) for memory in memories]) for number, shard in enumerate(self.shards)]
        return *sorted(known, key=hash), self.rested, self.told


def copy_of(question: RunQuiescence) -> RunQuiescence:
    """Another asker that remembers the same."""
    copy = type(question).__new__(type(question))
    vars(copy).update({name: dict(each) if isinstance(each, dict) else each for name, each in vars(question).items()})
    return copy


def told_too_early(asker: type[RunQuiescence], shards: int, steps: list[Step]) -> bool:
    """Whether the caller is told that the run is quiescent, and since the question it never was."""
    world = World((Shard(),) * shards, asker(shards))
    for step in steps:
        world = world.after(step)
        if world.told:
            return not world.rested
    return False


def first_mistake(asker: type[RunQuiescence], most: int = 2) -> list[Step] | None:
    """The shortest schedule of two shards at whose end the caller is told too early; None: there is none.

    Args:
        most: claims that begin in one epoch, and epochs.
    """
    start = World((Shard(), Shard()), asker(2))
    seen, waiting = {start.key}, deque([(start, Path(None, None))])
    while waiting:
        world, path = waiting.popleft()
        if world.rested:
            continue  # whatever it is told from now on is true
        for step in STEPS:
            after = world.after(step)
            if any(shard.begun > most or shard.epoch > most for shard in after.shards) or after.key in seen:
                continue
            if after.told and not after.rested:
                return Path(path, step).steps()
            seen.add(after.key)
            waiting.append((after, Path(path, step)))
    assert len(seen) > 1000, len(seen)
    return None


class Path(NamedTuple):
    """How a world was come to."""

    before: Path | None
    step: Step | None

    def steps(self) -> list[Step]:
        before = self.before.steps() if self.before is not None else []
        return before if self.step is None else [*before, self.step]


STEPS = [(action, number) for action in ACTIONS for number in range(2)]


class AsksOnce(RunQuiescence):
    """Believes the first round."""

    def answer(self, shard: int, standing: Standing) -> Verdict:
        verdict = super().answer(shard, standing)
        return Verdict.QUIESCENT if verdict is Verdict.ASK_AGAIN else verdict


class IgnoresWhatBegan(RunQuiescence):
    """Compares epochs only."""

    def answer(self, shard: int, standing: Standing) -> Verdict:
        return super().answer(shard, Standing(standing.epoch, 0))


class IgnoresEpochs(RunQuiescence):
    """Compares counts only."""

    def answer(self, shard: int, standing: Standing) -> Verdict:
        return super().answer(shard, Standing(0, standing.begun))


SCHEDULES = st.lists(st.tuples(st.sampled_from([*ACTIONS, "close", "hear", "deliver"]), st.integers(0, 2)), max_size=60)


@settings(max_examples=100, deadline=None)
@given(SCHEDULES)
def test_who_is_told_that_the_run_is_quiescent_can_rely_on_a_moment_at_which_it_was(steps: list[Step]) -> None:
    assert not told_too_early(RunQuiescence, 3, steps)


def test_random_schedules_find_an_asker_that_asks_once() -> None:
    schedules = st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 1)), max_size=30)
    limits = settings(
        max_examples=2000,
        database=None,
        derandomize=True,
        deadline=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    found = find(schedules, lambda steps: told_too_early(AsksOnce, 2, steps), settings=limits)
    assert len(found) < 12


def test_of_all_schedules_none_misleads_the_asker() -> None:
    assert first_mistake(RunQuiescence) is None


@pytest.mark.parametrize("broken", [AsksOnce, IgnoresWhatBegan, IgnoresEpochs])
def test_every_shortcut_is_misled_by_one(broken: type[RunQuiescence]) -> None:
    steps = first_mistake(broken)
    assert steps is not None
    assert told_too_early(broken, 2, steps)
    assert not told_too_early(RunQuiescence, 2, steps)


def test_a_shard_that_is_down_is_waited_for() -> None:
    world = World((Shard(open=0, begun=0),) * 3, RunQuiescence(3)).after(("restart", 1))
    rounds: list[Step] = [(action, number) for action in ("hear", "deliver") for number in range(3)]
    for step in rounds * 4:
        world = world.after(step)
        assert not world.told
    world = world.after(("restart", 1))
    told = []
    for step in rounds * 3:
        world = world.after(step)
        told.append(world.told)
    assert True in told
