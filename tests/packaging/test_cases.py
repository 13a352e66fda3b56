"""Absent cases skip, unless the run requires them: then they fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import cases


def test_the_named_folder_is_used(tmp_path: Path) -> None:
    (tmp_path / "records.jsonl").touch()
    assert cases.cases_dir({"GYM_CAPTURE_CASES": str(tmp_path)}) == tmp_path


def test_absent_cases_skip_and_say_where_they_were_looked_for(tmp_path: Path) -> None:
    with pytest.raises(pytest.skip.Exception, match=str(tmp_path)):
        cases.cases_dir({"GYM_CAPTURE_CASES": str(tmp_path)})


def test_absent_cases_fail_where_they_are_required(tmp_path: Path) -> None:
    with pytest.raises(pytest.fail.Exception, match=str(tmp_path)):
        cases.cases_dir({"GYM_CAPTURE_CASES": str(tmp_path), "GYM_CAPTURE_REQUIRE_CASES": "1"})
