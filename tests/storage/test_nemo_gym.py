"""NeMo Gym's capture lines: what counts, what is damaged, and who keeps which index."""

from __future__ import annotations

import pytest

from gym_capture.storage.nemo_gym import read_nemo_gym_lines

LINE = b'{"model_call_id": "m"}'
EXCHANGE = {"model_call_id": "m"}


def test_an_empty_file_has_nothing() -> None:
    assert read_nemo_gym_lines(b"") == ([], 0)


def test_lines_are_indexed_in_file_order() -> None:
    assert read_nemo_gym_lines(b'{"a": 1}\n{"a": 2}\n') == ([(0, {"a": 1}), (1, {"a": 2})], 0)


def test_blank_lines_have_no_index() -> None:
    assert read_nemo_gym_lines(b"\n  \n" + LINE + b"\r\n\t\n" + LINE) == ([(0, EXCHANGE), (1, EXCHANGE)], 0)


@pytest.mark.parametrize(
    "line",
    [
        *(b"[]", b"17", b'"text"', b"null", b"true", b"{}}", b'{"a": ', b"{} x", b"{'a': 1}", b"\xff", b"\x00"),
        *(b'{"a": NaN}', b'{"a": -Infinity}', b'{"a": "\\ud800"}', b'{"a": "\xed\xa0\x80"}', b'{"a": 01}'),
        b'{"a": ' + b"[" * 100_000,
    ],
    ids=range(17),
)
def test_a_damaged_line_is_counted_and_keeps_its_index(line: bytes) -> None:
    assert read_nemo_gym_lines(LINE + b"\n" + line + b"\n" + LINE + b"\n") == ([(0, EXCHANGE), (2, EXCHANGE)], 1)


def test_a_torn_last_line_is_damaged_and_a_whole_one_is_not() -> None:
    whole = LINE + b"\n" + LINE
    assert read_nemo_gym_lines(whole) == ([(0, EXCHANGE), (1, EXCHANGE)], 0)
    for cut in range(len(LINE) + 2, len(whole)):
        assert read_nemo_gym_lines(whole[:cut]) == ([(0, EXCHANGE)], 1)


def test_numbers_keep_their_digits() -> None:
    [(_, exchange)], _ = read_nemo_gym_lines(b'{"n": 123456789012345678901234567890, "f": 1.0, "i": 1}')
    assert repr(exchange) == "{'n': 123456789012345678901234567890, 'f': 1.0, 'i': 1}"
