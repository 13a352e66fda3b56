"""Bodies as they pass."""

from __future__ import annotations

from gym_capture.recording.body import Body


def test_what_is_added_is_kept_up_to_the_limit() -> None:
    body = Body(6)
    assert body.data == b""
    body.add(b"abc")
    body.add(b"")
    body.add(b"def")
    assert (body.data, body.size, body.overflowed) == (b"abcdef", 6, False)


def test_beyond_the_limit_only_the_size_is_known() -> None:
    body = Body(5)
    body.add(b"abc")
    body.add(b"def")
    body.add(b"g")
    assert (body.data, body.size, body.overflowed) == (None, 7, True)


def test_what_is_announced_as_too_large_is_never_kept() -> None:
    body = Body(5, expected_bytes=6)
    body.add(b"abc")
    assert (body.data, body.size, body.overflowed) == (None, 3, True)
