"""Reading the input: lines, limits, repeats, and errors that name the line."""

from __future__ import annotations

from pathlib import Path

import pytest

from gym_capture.collect.rows import InputSpec, read_rows, scan_rows
from gym_capture.errors import ConfigError, InputRowError


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "rows.jsonl"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_rows_are_numbered_by_their_line_even_after_blank_ones(tmp_path: Path) -> None:
    rows = list(read_rows(InputSpec(written(tmp_path, '{"q": 1}\n\n  \n{"q": 2}'))))
    assert [(row.line, row.identity.key, row.row) for row in rows] == [(1, "0-0", {"q": 1}), (4, "3-0", {"q": 2})]


def test_repeats_follow_each_other_and_limit_counts_rows(tmp_path: Path) -> None:
    path = written(tmp_path, '{"q": 1}\n{"q": 2}\n{"q": 3}\n')
    rows = read_rows(InputSpec(path, repeats=2, limit=2))
    assert [row.identity.key for row in rows] == ["0-0", "0-1", "1-0", "1-1"]


def test_values_that_standard_json_refuses_are_rows_too(tmp_path: Path) -> None:
    (row,) = read_rows(InputSpec(written(tmp_path, '{"big": 123456789012345678901234567890, "nan": NaN}')))
    assert row.row["big"] == 123456789012345678901234567890
    assert row.row["nan"] != row.row["nan"]


def test_a_byte_order_mark_is_passed_over(tmp_path: Path) -> None:
    (row,) = read_rows(InputSpec(written(tmp_path, b'\xef\xbb\xbf{"q": 1}\n')))
    assert row.row == {"q": 1}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"q": ', "not JSON"),
        ("[1, 2]", "holds a JSON array"),
        ("null", "holds a JSON null"),
        ('{"_ng_rollout_id": "a b"}', "not a rollout id"),
    ],
)
def test_a_bad_line_is_named_from_one(tmp_path: Path, line: str, said: str) -> None:
    path = written(tmp_path, f'{{"q": 1}}\n\n{line}\n{{"q": 3}}\n')
    with pytest.raises(InputRowError, match=said) as caught:
        scan_rows(InputSpec(path))
    assert caught.value.line == 3
    assert "line 3" in str(caught.value)


def test_two_rows_of_one_rollout_name_both_lines(tmp_path: Path) -> None:
    path = written(tmp_path, '{"_ng_task_index": 5}\n{"_ng_task_index": 5}\n')
    with pytest.raises(InputRowError, match="rollout 5-0 is already that of line 1") as caught:
        scan_rows(InputSpec(path))
    assert caught.value.line == 2


def test_a_row_that_names_its_rollout_cannot_be_repeated(tmp_path: Path) -> None:
    path = written(tmp_path, '{"q": 1}\n{"_ng_rollout_index": 0}\n')
    with pytest.raises(InputRowError, match=r"line 2 .* cannot be repeated 3 times"):
        scan_rows(InputSpec(path, repeats=3))


def test_a_scan_tells_every_key_and_its_line(tmp_path: Path) -> None:
    path = written(tmp_path, '{"q": 1}\n{"_ng_task_index": 9}\n')
    assert scan_rows(InputSpec(path, repeats=2)) == {"0-0": 1, "0-1": 1, "9-0": 2, "9-1": 2}


def test_an_input_that_is_not_there_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"collect\.input .*No such file"):
        scan_rows(InputSpec(tmp_path / "none.jsonl"))
    with pytest.raises(ConfigError, match="not a regular file"):
        scan_rows(InputSpec(tmp_path))


def test_reading_holds_no_more_than_a_row(tmp_path: Path) -> None:
    path = written(tmp_path, '{"q": 1}\nnot json\n')
    rows = read_rows(InputSpec(path))
    assert next(rows).row == {"q": 1}
    with pytest.raises(InputRowError):
        next(rows)
