"""Undoing content encodings, of friends and of others."""

from __future__ import annotations

import gzip
import random
import sys
import tracemalloc
import zlib
from collections.abc import Callable
from typing import Any

import brotli  # type: ignore[import-untyped]  # without stubs
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from gym_capture.recording.content_encoding import PIECE_BYTES, Decoder

PLAIN = b'{"text": "' + "naïve 東京 ".encode() * 500 + b'"}'


def deflated_raw(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


def two_zstd_frames(data: bytes) -> bytes:
    half = len(data) // 2
    return zstandard.compress(data[:half]) + zstandard.compress(data[half:])


ENCODED: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "gzip": ("gzip", gzip.compress),
    "gzip by its old name": ("X-GZip", gzip.compress),
    "two gzip members": ("gzip", lambda data: gzip.compress(data[:100]) + gzip.compress(data[100:])),
    "deflate": ("deflate", zlib.compress),
    "deflate without a header": ("deflate", deflated_raw),
    "br": ("br", brotli.compress),
    "zstd": ("zstd", zstandard.compress),
    "two zstd frames": ("zstd", two_zstd_frames),
    "several": (
        " gzip, identity,br ,zstd",
        lambda data: zstandard.compress(brotli.compress(gzip.compress(data))),
    ),
    "none": ("identity", bytes),
    "no name": ("", bytes),
}


def decode(decoder: Decoder, data: bytes, step: int) -> bytes:
    pieces = [piece for start in range(0, len(data), step) for piece in decoder.feed(data[start : start + step])]
    decoder.finish()
    return b"".join(pieces)


@pytest.mark.parametrize("kind", ENCODED)
@pytest.mark.parametrize("step", [1, 7, sys.maxsize])
def test_each_encoding_is_undone_however_it_is_cut(kind: str, step: int) -> None:
    name, encode = ENCODED[kind]
    decoder = Decoder(name, 1 << 20)
    assert decode(decoder, encode(PLAIN), step) == PLAIN
    assert (decoder.trouble, decoder.size) == (None, len(PLAIN))
    assert decoder.named is (kind not in ("none", "no name"))


@pytest.mark.parametrize("kind", [kind for kind in ENCODED if kind not in ("none", "no name")])
def test_what_ends_in_the_middle_is_broken_and_known_as_far_as_it_goes(kind: str) -> None:
    name, encode = ENCODED[kind]
    data = encode(PLAIN)
    decoder = Decoder(name, 1 << 20)
    assert PLAIN.startswith(decode(decoder, data[: len(data) - 5], 50))
    assert decoder.trouble == "broken"


@pytest.mark.parametrize("name", ["gzip", "br", "zstd", "deflate"])
def test_what_is_not_encoded_as_it_says_is_broken(name: str) -> None:
    decoder = Decoder(name, 1 << 20)
    decode(decoder, b"\xff\xfe plain text, and no " + name.encode() * 10, 4)
    assert decoder.trouble == "broken"


@pytest.mark.parametrize("name", ["compress", "aes128gcm", "gzip, secret", "gzip," * 5])
def test_an_unknown_encoding_is_told_and_gives_nothing(name: str) -> None:
    decoder = Decoder(name, 1 << 20)
    assert decode(decoder, b"data", 2) == b""
    assert (decoder.trouble, decoder.named) == ("unknown", True)


def test_nothing_is_nothing_in_every_encoding() -> None:
    for name, _ in ENCODED.values():
        decoder = Decoder(name, 10)
        assert (decode(decoder, b"", 1), decoder.trouble) == (b"", None)


@pytest.mark.parametrize(
    ("name", "encode"),
    [
        ("gzip", gzip.compress),
        ("gzip, gzip", lambda data: gzip.compress(gzip.compress(data))),
        ("deflate", deflated_raw),
        ("br", lambda data: brotli.compress(data, quality=4)),
        ("zstd", zstandard.compress),
    ],
    ids=["gzip", "gzip twice", "deflate", "br", "zstd"],
)
def test_a_bomb_is_stopped_at_the_limit_in_bounded_memory(name: str, encode: Callable[[bytes], bytes]) -> None:
    bomb = encode(bytes(64 << 20))
    assert len(bomb) < 1 << 18
    decoder = Decoder(name, 1 << 20)
    tracemalloc.start()
    try:
        given_out = sum(len(piece) for piece in decoder.feed(bomb))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert decoder.trouble == "overflowed"
    assert given_out <= 1 << 20
    assert peak < 40 << 20
    assert list(decoder.feed(b"more")) == []


NEW_INFLATION = zlib.decompressobj


class CountedZlib:
    """Counts the bytes that zlib is given, what it has handed back included."""

    def __init__(self) -> None:
        self.given = 0
        self.made = 0

    def decompressobj(self, bits: int) -> Any:
        self.made += 1
        return CountedInflation(self, bits)


class CountedInflation:
    def __init__(self, counted: CountedZlib, bits: int) -> None:
        self._counted = counted
        self._real = NEW_INFLATION(bits)

    def decompress(self, data: bytes, most: int) -> bytes:
        self._counted.given += len(data)
        return self._real.decompress(data, most)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


EMPTY_MEMBER = gzip.compress(b"", mtime=0)
EMPTY_FRAME = zstandard.compress(b"")


@pytest.mark.parametrize("unit", [EMPTY_MEMBER * 250, None], ids=["many members", "one that hardly shrinks"])
def test_work_grows_with_the_bytes_and_no_faster(unit: bytes | None, monkeypatch: pytest.MonkeyPatch) -> None:
    def work(times: int) -> int:
        data = unit * times if unit is not None else gzip.compress(random.Random(1).randbytes(times << 18))
        counted = CountedZlib()
        with monkeypatch.context() as patched:
            patched.setattr(zlib, "decompressobj", counted.decompressobj)
            decoder = Decoder("gzip", 64 << 20)
            for _ in decoder.feed(data):
                pass
            decoder.finish()
        assert decoder.trouble is None
        return counted.given

    assert work(8) < 10 * work(1)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("gzip", EMPTY_MEMBER * 5000),
        ("gzip, gzip", gzip.compress(EMPTY_MEMBER * 5000)),
        ("zstd", EMPTY_FRAME * 5000),
        ("zstd, zstd", zstandard.compress(EMPTY_FRAME * 1_000_000)),
        ("gzip, gzip", gzip.compress(gzip.compress(b"") + bytes(8 << 20))),
        ("gzip, br, zstd", zstandard.compress(brotli.compress(gzip.compress(b"") + bytes(8 << 20)))),
    ],
    ids=["members", "members inside", "frames", "frames inside", "padding inside", "padding inside of two"],
)
def test_what_decodes_to_nothing_is_stopped_at_the_limit_too(name: str, data: bytes) -> None:
    decoder = Decoder(name, 1 << 20)
    assert list(decoder.feed(data)) == []
    assert decoder.trouble == "overflowed"


def test_what_is_between_two_encodings_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    members = gzip.compress(EMPTY_MEMBER * 200_000)
    counted = CountedZlib()
    monkeypatch.setattr(zlib, "decompressobj", counted.decompressobj)
    decoder = Decoder("gzip, gzip", 1 << 20)
    assert list(decoder.feed(members)) == []
    assert decoder.trouble == "overflowed"
    assert counted.made < 1100


def test_pieces_are_small() -> None:
    decoder = Decoder("gzip", 1 << 30)
    assert max(len(piece) for piece in decoder.feed(gzip.compress(bytes(1 << 20)))) <= PIECE_BYTES


@given(st.sampled_from(["gzip", "br", "zstd", "deflate", "gzip, br"]), st.lists(st.binary(max_size=40), max_size=8))
def test_no_bytes_whatever_make_it_raise(name: str, chunks: list[bytes]) -> None:
    decoder = Decoder(name, 1 << 16)
    for chunk in chunks:
        list(decoder.feed(chunk))
    decoder.finish()
