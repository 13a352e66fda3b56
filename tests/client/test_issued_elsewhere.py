"""Calls that a handle's holder issued and somebody else claims."""

from __future__ import annotations

import pytest

from gym_capture.client.issued import MOST_ISSUED, IssuedCalls


def test_calls_elsewhere_add_to_those_that_were_claimed_here() -> None:
    issued = IssuedCalls()
    issued.add("a")
    issued.add_elsewhere(1)
    issued.add_elsewhere(2)
    issued.add("a")
    issued.discard("a")
    assert issued.count == 3


@pytest.mark.parametrize("calls", [-1, 1.0, True, MOST_ISSUED])
def test_a_count_that_is_none_is_refused_and_changes_nothing(calls: int) -> None:
    issued = IssuedCalls()
    issued.add_elsewhere(1)
    with pytest.raises(ValueError, match="count of calls"):
        issued.add_elsewhere(calls)
    assert issued.count == 1
