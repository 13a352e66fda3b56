"""`docs/format.md` says what the code does: its tables list the fields in order, its examples are the bytes."""

from __future__ import annotations

import re
from enum import IntEnum
from pathlib import Path
from typing import Any, get_args

import pytest

from gym_capture.model.codec import FRAME_HEAD_BYTES, FRAME_MAGIC, SEGMENT_HEAD_BYTES, SEGMENT_MAGIC
from gym_capture.model.messages import FromClient, FromOwner, Request
from gym_capture.model.rows import Outcome, Part, PartFlag, PartKind, Row
from tests.model.worked_example import EXAMPLES

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "format.md").read_text(encoding="utf-8")
EXAMPLE = re.compile(r"([\w ]+):\n\n```hex\n(.*?)```", re.DOTALL)
GOLDEN = {
    "segment header": "47435345470d0a1a020000000100000000000000101112131415161718191a1b1c1d1e1ff2c4cce8",
    "frame": (
        "f747434601000000010000000900000011000000000000000300000064000000080000008386fb6a939401c41000010203040506070809"
        "0a0b0c0d0e0f02019702a3372d3005a2633100cb41d954fc40200000009b03a3372d3005a26331c410202122232425262728292a2b2c2d"
        "2e2f92960000000101ced08b6829960202010707cecff7d56a0003000000807b2261223a317d"
    ),
    "hello": (
        "5400000000000000980102a5302e312e30a6736563726574d9203130313131323133313431353136313731383139316131623163316431"
        "653166c410000102030405060708090a0b0c0d0e0f9104ad6e6f64652d3120706964203737"
    ),
    "welcome": (
        "4400000000000000990102a5302e312e30d920313031313132313331343135313631373138313931613162316331643165316601cb4018"
        "000000000000ce00800000ce04000000ce00400000"
    ),
    "batch": (
        "520000000800000094020201929702a3372d3005a26331ffcb0000000000000000009b03a3372d3005a26331c410202122232425262728"
        "292a2b2c2d2e2f92960000000101ced08b6829960202010707cecff7d56affff000000807b2261223a317d"
    ),
    "answers": "0c0000000000000093030292930000ff93000003",
}
"""What format version 2 and protocol version 2 are. A change here is another version, but for fields at a row's end."""


def documented() -> dict[str, bytes]:
    """The examples of the document: what stands before each line's comment."""
    found: dict[str, bytes] = {}
    for match in EXAMPLE.finditer(TEXT):
        name = match[1].rsplit("\n", 1)[-1].strip().lower()
        lines = [line.partition("#")[0] for line in match[2].splitlines()]
        found[name] = bytes.fromhex("".join(lines))
    return found


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_bytes_stay_what_they_are(name: str) -> None:
    assert EXAMPLES[name]().hex() == GOLDEN[name]


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_documents_bytes_are_what_the_code_makes(name: str) -> None:
    assert documented()[name].hex() == EXAMPLES[name]().hex()


def test_the_document_has_no_other_bytes() -> None:
    assert documented().keys() == EXAMPLES.keys() == GOLDEN.keys()


def table(title: str) -> list[tuple[int, str, list[str]]]:
    """(number, name, what is in backticks in the third column) of the table with this heading in its second column."""
    rows = TEXT[TEXT.index(f"| {title} |") :].partition("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    return [(int(row[0]), row[1].strip("`"), re.findall(r"`(\w+)`", row[2])) for row in cells]


def structs(union: Any) -> list[tuple[int, str, list[str]]]:
    return [(kind.__struct_config__.tag, kind.__name__, [*kind.__struct_fields__]) for kind in get_args(union)]


@pytest.mark.parametrize(
    ("title", "union"),
    [
        ("row", Row),
        ("from the client", FromClient),
        ("from the owner", FromOwner),
        ("request of a `Call`", Request),
    ],
)
def test_the_tables_list_every_tag_and_field_in_order(title: str, union: Any) -> None:
    assert table(title) == structs(union)


@pytest.mark.parametrize(
    ("heading", "kind"), [("| outcome | name |", Outcome), ("| kind | name |", PartKind), ("| flag | name |", PartFlag)]
)
def test_the_tables_list_every_number(heading: str, kind: type[IntEnum]) -> None:
    rows = TEXT[TEXT.index(heading) :].partition("\n\n")[0].splitlines()[2:]
    listed = [re.findall(r"\| (\d+) \| `(\w+)` \|", row)[0] for row in rows]
    assert listed == [(str(member.value), member.name) for member in kind]


def test_what_the_text_says_of_parts_and_heads() -> None:
    assert ", ".join(f"`{name}`" for name in Part.__struct_fields__) in TEXT
    assert f"## Segment header ({SEGMENT_HEAD_BYTES} bytes)" in TEXT
    assert f"| {FRAME_HEAD_BYTES} | R | rows" in TEXT
    assert FRAME_MAGIC.hex(" ") in TEXT
    assert SEGMENT_MAGIC.hex(" ") in TEXT
