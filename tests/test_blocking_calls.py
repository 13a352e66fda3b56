"""What may block for long: beside the loop for a coroutine, in the calling thread for a caller that blocks anyway."""

from __future__ import annotations

import asyncio
import threading

import pytest

from gym_capture.client.blocking_mode import run_blocking
from gym_capture.reach.blocking_calls import in_thread


def failing() -> None:
    raise OSError("the disk is gone")


def test_a_coroutine_waits_for_a_thread_of_its_own() -> None:
    used = asyncio.run(in_thread(threading.current_thread))
    assert used is not threading.current_thread()
    assert used.daemon


def test_a_caller_that_blocks_does_it_itself() -> None:
    assert run_blocking(in_thread(threading.current_thread)) is threading.current_thread()


def test_what_is_raised_comes_back_either_way() -> None:
    with pytest.raises(OSError, match="gone"):
        asyncio.run(in_thread(failing))
    with pytest.raises(OSError, match="gone"):
        run_blocking(in_thread(failing))
