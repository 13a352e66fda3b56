"""Captured text on a terminal."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gym_capture.reading.plain_text import plain_block, plain_line


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain words, größer, 日本語, 👍", "plain words, größer, 日本語, 👍"),
        ("\x1b]0;owned\x07", "\\x1b]0;owned\\x07"),
        ("\x1b[2J\x9b31m", "\\x1b[2J\\x9b31m"),
        ("abc\u202egpj.exe", "abc\\u202egpj.exe"),
        ("\u2066a\u2069\u200b\ufeff", "\\u2066a\\u2069\\u200b\\ufeff"),
        ("a\0b\x7f", "a\\x00b\\x7f"),
        ("one\ntwo\rthree\tfour", "one\\ntwo\\rthree    four"),
        ("\ud800", "\\ud800"),
        ("tag \U000e0041", "tag \\U000e0041"),
        ("e" + "\u0301" * 100, "e" + "\u0301" * 8 + "…"),
    ],
)
def test_what_would_steer_a_terminal_is_written_out(text: str, shown: str) -> None:
    assert plain_line(text) == shown


def test_a_long_line_is_cut_and_says_by_how_much() -> None:
    assert plain_line("x" * 1_000_000, 5) == "xxxxx… (999,995 more characters)"


def test_a_block_keeps_its_lines_and_says_how_many_more_there_are() -> None:
    assert plain_block("a\r\nb\x1b\nc\nd\ne", 3) == "a\nb\\x1b\nc\n… (2 more lines)"
    assert plain_block("a\nb") == "a\nb"


@settings(max_examples=80, deadline=None)
@given(st.text(st.characters(categories=("C", "Z", "M", "L"))))
def test_nothing_that_is_shown_controls_or_reorders(text: str) -> None:
    shown = plain_line(text)
    assert not [each for each in shown if unicodedata.category(each) in ("Cc", "Cs", "Zl", "Zp")]
    assert not [each for each in shown if unicodedata.bidirectional(each) in ("LRE", "RLE", "LRO", "RLO", "PDF")]
