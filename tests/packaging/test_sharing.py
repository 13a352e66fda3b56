"""Which process of `pytest -n` gets which tests."""

from __future__ import annotations

import pytest

from tests.sharing import CLUSTER, file_of, place_of, share_of


def test_all_that_use_the_sessions_ray_are_one_share(request: pytest.FixtureRequest) -> None:
    assert {share_of(file) for file in ("tests/actor/test_launch.py", "tests/test_api.py")} == {CLUSTER}
    items = [item for item in request.session.items if "ray_cluster" in getattr(item, "fixturenames", ())]
    assert {share_of(file_of(item.nodeid)) for item in items} <= {CLUSTER}


def test_any_other_file_is_a_share_and_long_ones_come_before_short_ones() -> None:
    files = ["tests/model/test_ids.py", "tests/crash/test_two_owners.py", "tests/actor/test_launch.py"]
    assert [share_of(file) for file in files] == [*files[:2], CLUSTER]
    assert [place_of(file) for file in files] == [2, 1, 0]
