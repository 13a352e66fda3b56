"""What a caller awaits: its task goes on in the turn that brings the answer; all else is as with any future."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Coroutine
from typing import Any

import pytest

from gym_capture.client.answer import Answer
from gym_capture.client.delivery import Delivery
from gym_capture.client.operations import Operation
from tests.client.virtual_time import run_virtual

_place: contextvars.ContextVar[str] = contextvars.ContextVar("place", default="nowhere")


def waiting_for(answer: Answer, told: list[str], name: str) -> Coroutine[Any, Any, None]:
    """A caller that says where it went on."""

    async def wait() -> None:
        _place.set(name)
        await answer
        told.append(_place.get())

    return wait()


def test_a_caller_goes_on_in_the_turn_that_brings_its_answer_and_in_its_own_context() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        told: list[str] = []
        answer = Answer(loop)
        task = loop.create_task(waiting_for(answer, told, "here"))
        await asyncio.sleep(0)
        loop.call_soon(answer.settle)
        loop.call_soon(told.append, "next callback")
        await task
        assert told == ["here", "next callback"]

    run_virtual(main())


def test_a_cancelled_caller_is_told_once_and_a_late_answer_changes_nothing() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        told: list[str] = []
        answer = Answer(loop)
        task = loop.create_task(waiting_for(answer, told, "here"))
        await asyncio.sleep(0)
        task.cancel("enough")
        loop.call_soon(answer.settle)
        with pytest.raises(asyncio.CancelledError, match="enough"):
            await task
        assert (told, answer.cancelled()) == ([], True)

    run_virtual(main())


def test_an_answer_that_is_there_already_is_not_waited_for() -> None:
    async def main() -> None:
        answer = Answer(asyncio.get_running_loop())
        answer.settle()
        answer.settle()
        await answer

    run_virtual(main())


def test_others_may_listen_too() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        told: list[str] = []
        answer = Answer(loop)
        task = loop.create_task(waiting_for(answer, told, "task"))
        await asyncio.sleep(0)
        answer.add_done_callback(lambda _: told.append("listener"))
        forgotten = told.append
        answer.add_done_callback(forgotten)  # type: ignore[arg-type]
        assert answer.remove_done_callback(forgotten) == 1  # type: ignore[arg-type]
        loop.call_soon(answer.settle)
        await task
        await asyncio.sleep(0)
        assert told == ["task", "listener"]

    run_virtual(main())


def test_waiting_with_a_timeout_leaves_the_answer_to_be_dropped() -> None:
    async def main() -> None:
        answer = Answer(asyncio.get_running_loop())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await answer
        assert answer.cancelled()

    run_virtual(main())


def test_a_caller_that_ends_the_loop_takes_no_other_callers_answer_along() -> None:
    loop = asyncio.new_event_loop()
    told: list[str] = []
    delivery = Delivery(lambda operation: None)

    async def caller(name: str) -> None:
        operation = Operation()
        operation.loop, operation.answer = loop, Answer(loop)
        delivery.finish(operation)
        await operation.answer
        if name == "first":
            raise KeyboardInterrupt
        told.append(name)

    tasks = [loop.create_task(caller(name)) for name in ("first", "second", "third")]
    try:
        loop.call_soon(delivery.flush)
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        loop.run_until_complete(asyncio.wait(tasks[1:], timeout=5.0))
        assert told == ["second", "third"]
        assert isinstance(tasks[0].exception(), KeyboardInterrupt)
    finally:
        loop.close()
