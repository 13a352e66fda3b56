"""Where the cases with right answers lie, and their lines.

They are kept beside the checkout (`../shared/cases`), or where `GYM_CAPTURE_CASES` says. Tests that need them skip
where they are absent, unless `GYM_CAPTURE_REQUIRE_CASES=1`: then they fail.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]


def cases_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """The folder of cases. Works inside a test and while tests are collected (to parametrize over them)."""
    folder = Path(environ.get("GYM_CAPTURE_CASES") or ROOT.parent / "shared" / "cases")
    if (folder / "records.jsonl").is_file():
        return folder
    absent = f"no cases at {folder}: lay shared/ beside the checkout or set GYM_CAPTURE_CASES"
    if environ.get("GYM_CAPTURE_REQUIRE_CASES") == "1":
        pytest.fail(f"{absent} (GYM_CAPTURE_REQUIRE_CASES=1 forbids the skip)", pytrace=False)
    pytest.skip(absent, allow_module_level=True)


def read_cases(name: str) -> list[dict[str, Any]]:
    """The lines of one file of cases, `records.jsonl` say, in order."""
    with (cases_dir() / name).open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]
