"""Many calls of a client at once: some under way together, every one tried, the failures told together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")

AT_ONCE = 256
"""How many are under way together: enough to fill groups and the link, and no more callers than the owner may have."""


async def perform_all(calls: Iterable[Callable[[], Coroutine[Any, Any, T]]], what: str) -> list[T]:
    """Make every call; `calls` is drawn from only as fast as they are made.

    Args:
        what: what was tried, for the message: `clear of rollouts`.

    Returns:
        Their results, in order.

    Raises:
        ExceptionGroup: some failed; the others were made all the same.
    """
    results: dict[int, T] = {}
    errors: list[Exception] = []
    waiting = enumerate(calls)
    count = 0

    async def work() -> None:
        nonlocal count
        for number, call in waiting:
            count += 1
            try:
                results[number] = await call()
            except Exception as error:  # noqa: BLE001 - told below, with the others
                errors.append(error)

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(work())
    if errors:
        raise ExceptionGroup(f"{len(errors)} of {count} failed ({what}); the others were done", errors)
    return [results[number] for number in range(count)]
