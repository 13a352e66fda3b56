"""Commands that run in the test's process leave it as it was."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """Commands set up logging for a process of their own."""
    logger = logging.getLogger("gym_capture")
    before = (logger.handlers[:], logger.propagate, logger.level)
    yield
    logger.handlers[:], logger.propagate = before[0], before[1]
    logger.setLevel(before[2])
