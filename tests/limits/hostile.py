"""Hostile input for every parser, at any size: what a stranger, a model or a damaged disk may hand over."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from gym_capture.config import load_config
from gym_capture.errors import GymCaptureError
from gym_capture.model.codec import SEGMENT_HEAD_BYTES, decode_rows, encode_frame_head, encode_rows
from gym_capture.model.exchange import decode_fields, open_record, seal
from gym_capture.model.ids import split_rollout_token, validate_rollout_id
from gym_capture.model.json_text import decode_json, parse_json
from gym_capture.model.messages import MessageSplitter, decode_from_client, decode_from_owner
from gym_capture.model.rows import ClaimRow, MarkRow
from gym_capture.recording.routes import find_route
from gym_capture.recording.sse import EventParser
from gym_capture.storage import names
from gym_capture.storage.log_plan import plan_log
from gym_capture.storage.log_reader import read_frames
from gym_capture.storage.log_scan import LogScan
from gym_capture.storage.names import SegmentName
from gym_capture.storage.nemo_gym import read_nemo_gym_lines
from gym_capture.storage.owner_file import end_of_log, parse_owner
from gym_capture.storage.run_marker import read_run
from gym_capture.testing.faulty_files import FaultyDisk

RUN = bytes(range(16))


class Hostile(NamedTuple):
    """`make` builds input of about so many bytes, `parse` takes it. `size`: the smaller of the two that are timed."""

    name: str
    size: int
    make: Callable[[int], object]
    parse: Callable[[object], object]


def quietly(parse: Callable[..., object]) -> Callable[[object], object]:
    """Documented refusals are answers too."""

    def run(given: object) -> object:
        try:
            return parse(given)
        except GymCaptureError:
            return None

    return run


def heads(size: int) -> bytes:
    """Model output that looks like heads of frames all over, each of which claims all the rest as its rows."""
    one = encode_frame_head(b"", key=RUN, kind=1, epoch=1, group=1, sequence=1, row_count=1, body_bytes=0)
    whole = bytearray()
    for at in range(0, size, len(one)):
        rows = max(0, size - at - len(one))
        whole += one[:28] + struct.pack("<I", rows) + one[32:]
    return bytes(whole[:size])


def search_for_frames(data: object) -> object:
    assert isinstance(data, bytes)
    whole = bytes(SEGMENT_HEAD_BYTES) + b"\0" * 64 + data
    end = len(whole)
    return list(read_frames(lambda at, n: whole[at : at + n], SEGMENT_HEAD_BYTES, end, SegmentName(1, 0), RUN))


def events(data: object) -> object:
    assert isinstance(data, bytes)
    parser = EventParser(limit_bytes=1 << 20)
    return [list(parser.feed(data[at : at + 64])) for at in range(0, len(data), 64)]


def split(data: object) -> object:
    assert isinstance(data, bytes)
    splitter = MessageSplitter(1 << 30)
    return [list(splitter.feed(data[at : at + 1000])) for at in range(0, len(data), 1000)]


def disk_with(name: str) -> Callable[[int], object]:
    def make(size: int) -> object:
        disk = FaultyDisk()
        disk.put(name, b'{"run":' + b"[" * size)
        return disk

    return make


def numbered(size: int) -> object:
    """A directory with one segment whose number is as large as a name can say."""
    disk = FaultyDisk()
    disk.put(names.epoch_file(1), b"{}")
    disk.put(SegmentName(1, size).file, b"")
    return disk


def scan(disk: object) -> object:
    assert isinstance(disk, FaultyDisk)
    return list(LogScan(disk.view(), plan_log(disk.view())))


def configuration(folder: Path, text: Callable[[int], str]) -> Callable[[int], object]:
    def make(size: int) -> object:
        folder.mkdir(exist_ok=True)
        path = folder / f"{size}.yaml"
        path.write_text(text(size))
        return path

    return make


def cases(folder: Path) -> list[Hostile]:
    """All of them. Configuration files are written to `folder`."""

    def exchange(**fields: object) -> dict[str, object]:
        return {"model_call_id": "c", "dialect": "chat", **fields}

    def nested(depth: int) -> object:
        value: object = 1
        for _ in range(depth):
            value = [value]
        return value

    return [
        Hostile("rows: nested arrays", 100_000, lambda n: b"\x91" * n, quietly(decode_rows)),
        Hostile("rows: many", 100_000, lambda n: encode_rows([MarkRow("r", "x")] * (n // 10)), quietly(decode_rows)),
        Hostile("rows: one long id", 1_000_000, lambda n: encode_rows([ClaimRow("r" * n, 1)]), quietly(decode_rows)),
        Hostile(
            "message of a client: nested", 100_000, lambda n: b"\x94\x02" + b"\x91" * n, quietly(decode_from_client)
        ),
        Hostile(
            "message of an owner: nested", 100_000, lambda n: b"\x93\x04\x01" + b"\x81" * n, quietly(decode_from_owner)
        ),
        Hostile("messages: empty ones", 5_000, lambda n: b"\x01\0\0\0\0\0\0\0\x90" * (n // 9), quietly(split)),
        Hostile("exchange: nested", 400, lambda n: exchange(request=nested(n)), quietly(seal)),
        Hostile("exchange: nested text", 50_000, lambda n: exchange(request=b"[" * n), quietly(seal)),
        Hostile("exchange: many keys", 5_000, lambda n: exchange(request={str(i): i for i in range(n)}), quietly(seal)),
        Hostile("exchange: long integer", 5_000, lambda n: exchange(request=b"9" * n), quietly(seal)),
        Hostile("exchange: long string", 50_000, lambda n: exchange(response={"choices": "\ud800" * n}), quietly(seal)),
        Hostile("JSON: backslashes", 200_000, lambda n: b'"' + b"\\" * n, quietly(lambda d: _ignore(parse_json, d))),
        Hostile("JSON: surrogates", 200_000, lambda n: b'["' + b"\\ud800" * (n // 6) + b'"]', quietly(decode_json)),
        Hostile(
            "JSON: integers",
            100_000,
            lambda n: b"[" + b",".join([b"9" * 400] * (n // 400)) + b"]",
            quietly(decode_json),
        ),
        Hostile("stored fields: nested", 100_000, lambda n: b"\x91" * n, quietly(lambda d: _ignore(decode_fields, d))),
        Hostile(
            "stored record: nested", 100_000, lambda n: b'{"a":' * (n // 5), quietly(lambda d: _ignore(open_record, d))
        ),
        Hostile(
            "OWNER: nested",
            100_000,
            lambda n: b'{"run":' + b"[" * n,
            quietly(lambda d: parse_owner(FaultyDisk().view(), d)),
        ),
        Hostile("RUN: nested", 100_000, disk_with(names.RUN), quietly(lambda d: read_run(d.view()))),
        Hostile("beat: digits", 500_000, lambda n: b"stopped " + b"9" * n, quietly(end_of_log)),
        Hostile("rollout id: long", 200_000, lambda n: "a-" * n, quietly(validate_rollout_id)),
        Hostile("rollout token: tildes", 200_000, lambda n: "a~" * n, quietly(split_rollout_token)),
        Hostile("path: slashes", 200_000, lambda n: b"/ng-rollout/" + b"%7E/" * n, quietly(find_route)),
        Hostile("events: no end of a line", 200_000, lambda n: b"data: " + b"x" * n, events),
        Hostile("events: many lines", 10_000, lambda n: b"data: x\n" * (n // 8), events),
        Hostile("segment: heads all over", 40_000, heads, search_for_frames),
        Hostile("segment: its number", 10_000, numbered, scan),
        Hostile("NeMo Gym: lines", 10_000, lambda n: b"{\n" * (n // 2), quietly(read_nemo_gym_lines)),
        Hostile("NeMo Gym: nested", 100_000, lambda n: b"[" * n + b"\n", quietly(read_nemo_gym_lines)),
        Hostile("configuration: nested", 50, configuration(folder, lambda n: "a: " + "[" * n), quietly(load_config)),
        Hostile(
            "configuration: many keys",
            50,
            configuration(folder, lambda n: "".join(f"k{i}: 1\n" for i in range(n))),
            quietly(load_config),
        ),
        Hostile(
            "configuration: one long key",
            2000,
            configuration(folder, lambda n: json.dumps({"c" * n: 1})),
            quietly(load_config),
        ),
        Hostile(
            "configuration: aliases of aliases",
            2,
            configuration(
                folder,
                lambda n: (
                    "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, n + 1))
                ),
            ),
            quietly(load_config),
        ),
    ]


def _ignore(parse: Callable[..., object], data: object) -> object:
    try:
        return parse(data)
    except ValueError:
        return None
