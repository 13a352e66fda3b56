"""Undoing content encodings, of friends and of others."""

from __future__ import annotations

import gzip
import sys
import tracemalloc
import zlib
from collections.abc import Callable

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


def gzip_of_gzip(size: int) -> bytes:
    return gzip.compress(gzip.compress(bytes(size)))


@pytest.mark.parametrize(
    ("name", "bomb"),
    [
        ("gzip", gzip.compress(bytes(64 << 20), 9)),
        ("gzip, gzip", gzip_of_gzip(64 << 20)),
        ("deflate", deflated_raw(bytes(64 << 20))),
        ("br", brotli.compress(bytes(64 << 20), quality=4)),
        ("zstd", zstandard.compress(bytes(64 << 20))),
    ],
    ids=["gzip", "gzip twice", "deflate", "br", "zstd"],
)
def test_a_bomb_is_stopped_at_the_limit_in_bounded_memory(name: str, bomb: bytes) -> None:
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


def test_pieces_are_small() -> None:
    decoder = Decoder("gzip", 1 << 30)
    assert max(len(piece) for piece in decoder.feed(gzip.compress(bytes(1 << 20)))) <= PIECE_BYTES


@given(st.sampled_from(["gzip", "br", "zstd", "deflate", "gzip, br"]), st.lists(st.binary(max_size=40), max_size=8))
def test_no_bytes_whatever_make_it_raise(name: str, chunks: list[bytes]) -> None:
    decoder = Decoder(name, 1 << 16)
    for chunk in chunks:
        list(decoder.feed(chunk))
    decoder.finish()
