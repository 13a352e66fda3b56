"""The configuration's two keys, and names that moved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gym_capture import model_calls
from gym_capture.errors import InvalidRolloutId
from gym_capture.model import metrics, record, usage


@pytest.mark.parametrize(
    ("config", "enabled"),
    [
        ({}, False),
        ({"observability_enabled": False}, False),
        ({"observability_enabled": True}, True),
        ({"observability_enabled": True, "model_call_capture_dir": "relative"}, True),
        ({"policy": {"observability_enabled": True}}, False),
    ],
)
def test_the_flag_alone(config: dict[str, Any], enabled: bool) -> None:
    assert model_calls.observability_enabled_from_config(config) is enabled


def test_the_one_directory_when_enabled(tmp_path: Path) -> None:
    config = {"observability_enabled": True, "model_call_capture_dir": str(tmp_path), "unrelated": {"key": 1}}
    assert model_calls.model_call_capture_dirs_from_config(config) == [tmp_path]
    assert model_calls.model_call_capture_dirs_from_config({**config, "observability_enabled": False}) == []
    assert model_calls.model_call_capture_dirs_from_config({}) == []


@pytest.mark.parametrize("directory", [None, "relative/path", "", 5, ["/a"], {"path": "/a"}, b"/a"])
def test_enabled_without_an_absolute_directory_is_an_error(directory: Any) -> None:
    with pytest.raises(ValueError, match="model_call_capture_dir"):
        model_calls.model_call_capture_dirs_from_config(
            {"observability_enabled": True, "model_call_capture_dir": directory}
        )


@pytest.mark.parametrize("rollout_id", [["0-0"], None, 5, "no/id", ""])
async def test_quiescence_of_what_is_no_rollout_id_is_refused(rollout_id: Any, tmp_path: Path) -> None:
    for directories in ([], [tmp_path]):
        with pytest.raises(InvalidRolloutId):
            await model_calls.await_model_call_capture_quiescence(rollout_id, directories, timeout_s=0.0)


@pytest.mark.parametrize(
    ("name", "home"),
    [
        ("ModelCallRecord", record.ModelCallRecord),
        ("build_model_call_record", record.build_model_call_record),
        ("extract_token_stats", usage.extract_token_stats),
        ("aggregate_model_call_records", metrics.aggregate),
    ],
)
def test_names_that_moved_resolve_with_a_warning(name: str, home: Any) -> None:
    with pytest.warns(DeprecationWarning, match=name):
        assert getattr(model_calls, name) is home


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        model_calls.no_such_name  # noqa: B018
