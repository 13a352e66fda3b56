"""Requests as skeletons: exact bytes come back whatever the text is, forged skeletons do not, and work stays linear."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gym_capture.errors import DamagedLog
from gym_capture.model import history
from gym_capture.model.codec import checksum
from gym_capture.model.history import MessageRun, Stretch, digest_of, references, resolve, run_of, weave
from gym_capture.model.json_elements import MIN_ELEMENT_BYTES, Element, Known, find_regions

LONG = "x" * 40


def elements_of(text: bytes) -> list[Element]:
    return [element for region in find_regions(text) for element in region.elements]


@pytest.fixture
def digested(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What was digested as a message, in order."""
    found: list[bytes] = []

    def noting(data: bytes) -> bytes:
        found.append(data)
        return digest_of(data)

    monkeypatch.setattr(history, "digest_of", noting)
    return found


class Stored:
    """What an owner has of one history."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.known: dict[bytes, int] = {}
        self.stretches: dict[str, Stretch] = {}

    def through(self, text: bytes) -> bytes:
        """Store a request and read it back."""
        woven = weave(text, self.known, len(self.messages), self.stretches)
        if woven is None:
            return text
        self.stretches |= woven.stretches
        for message, digest in zip(woven.messages, woven.digests, strict=True):
            self.known[digest] = len(self.messages)
            self.messages.append(message)
        assert woven.needs <= len(self.messages)
        assert references(woven.skeleton, len(text), woven.needs) <= set(range(woven.needs))
        return resolve(woven.skeleton, len(text), woven.needs, run_of(dict(enumerate(self.messages))))


def chat(messages: list[Any], **others: Any) -> bytes:
    return json.dumps({"model": "m", "messages": messages, **others}, separators=(",", ":")).encode()


def message(number: int, size: int = 60) -> dict[str, str]:
    return {"role": "user", "content": f"{number} " + "y" * size}


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**80), 2**80),
    st.floats(),
    st.text(st.characters(), max_size=60),
    st.sampled_from(["\ud800", "a\udfff" * 20, "é" * 30, '"messages":[{"a":1}]', "\\", "\u2028"]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["role", "content", "a"]), inner),
    max_leaves=6,
)
KEYS = st.sampled_from(["messages", "input", "tools", "system", "instructions", "model", "temperature"])
GAPS = st.sampled_from(["", " ", "\n  ", "\t\r\n", ","])


@st.composite
def texts(draw: st.DrawFn) -> bytes:
    """JSON objects written in every way: keys twice, escaped keys, odd space, values of any kind, broken ends."""
    gap = draw(GAPS)
    fields = []
    for _ in range(draw(st.integers(1, 5))):
        key = draw(KEYS)
        if draw(st.booleans()):
            items = [json.dumps(item, ensure_ascii=draw(st.booleans())) for item in draw(st.lists(VALUES, max_size=5))]
            value = "[" + gap + f"{gap},{gap}".join(items) + gap + "]"
        else:
            value = json.dumps(draw(VALUES))
        name = json.dumps(key) if draw(st.integers(0, 5)) else f'"\\u{ord(key[0]):04x}{key[1:]}"'
        fields.append(f"{name}{gap}:{gap}{value}")
    text = "{" + gap + f"{gap},{gap}".join(fields) + gap + "}" + draw(st.sampled_from(["", "\n", "x", "}"]))
    raw = text.encode("utf-8", "surrogatepass")
    return raw[: draw(st.integers(0, len(raw)))] if draw(st.integers(0, 9)) == 0 else raw


@settings(deadline=None)
@given(st.lists(texts() | st.binary(max_size=400), min_size=1, max_size=5))
def test_whatever_is_sent_comes_back_byte_for_byte(sent: list[bytes]) -> None:
    stored = Stored()
    for text in sent:
        assert stored.through(text) == text
        found = elements_of(text)
        assert all(text[start:end] == data for start, end, data in found)
        assert all(one[1] <= other[0] for one, other in pairwise(found))


@settings(deadline=None)
@given(texts(), st.data())
def test_what_is_found_around_what_is_known_lies_in_the_text_and_outside_of_it(
    text: bytes, data: st.DataObject
) -> None:
    known = {}
    for key in data.draw(st.sets(st.sampled_from(["messages", "input", "tools"]), min_size=1)):
        at = data.draw(st.integers(0, len(text)))
        known[key] = Known(at, data.draw(st.integers(0, len(text) - at)), 1)
    for region in find_regions(text):
        if region.key and data.draw(st.booleans()):
            known[region.key] = Known(region.start, region.end - region.start, region.listed)
    regions = find_regions(text, known)
    assert all(one.end <= other.start for one, other in pairwise(regions))
    for region in regions:
        behind = region.start + region.known_bytes
        if region.known_bytes:
            assert (region.start, region.known_bytes) == known[region.key][:2]
        for start, end, element in region.elements:
            assert behind <= start < end <= region.end
            assert text[start:end] == element
            behind = end


@pytest.mark.parametrize("space", ["", " ", "\n  "])
def test_lists_that_go_on_are_found_around_what_they_begin_with(space: str) -> None:
    def written(tools: int, messages: int) -> bytes:
        body = {"system": LONG, "tools": [message(-each) for each in range(tools)], "n": "é", "messages": []}
        body |= {"messages": ["short", *map(message, range(messages))], "input": [message(9)], "instructions": LONG}
        return json.dumps(body, indent=None if space == "" else space).encode()

    before = {region.key: region for region in find_regions(written(2, 3)) if region.key in ("tools", "messages")}
    known = {key: Known(each.start, each.end - each.start, each.listed) for key, each in before.items()}
    for text in (written(2, 3), written(2, 5)):
        whole, around = find_regions(text), find_regions(text, known)
        assert [region[:4] for region in around] == [region[:4] for region in whole]
        assert [region.known_bytes for region in around] == [0, known["tools"].length, known["messages"].length, 0, 0]
        behind = known["messages"].at + known["messages"].length
        assert around[1].elements == []
        assert around[2].elements == [each for each in whole[2].elements if each[0] > behind]
    moved = written(3, 5)  # where messages are now is for the caller to say
    assert find_regions(moved, known) != find_regions(moved)
    assert find_regions(moved, {"messages": Known(0, 9, 1), "tools": Known(5, 9, 1)}) == find_regions(moved)


def test_lists_that_moved_go_on_from_what_they_were(digested: list[bytes]) -> None:
    stored = Stored()
    for turn in range(1, 5):
        messages, tools = [message(index) for index in range(turn)], [message(-1), message(-2)]
        text = json.dumps({"user": "u" * turn, "messages": messages, "n": "z" * turn, "tools": tools}).encode()
        digested.clear()
        assert stored.through(text) == text
        assert len(digested) == (3 if turn == 1 else 1)


@settings(deadline=None)
@given(st.lists(VALUES, min_size=1, max_size=12), st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", ":\t")]))
def test_a_growing_conversation_comes_back_and_stores_each_message_once(
    items: list[Any], style: tuple[str, str]
) -> None:
    stored = Stored()
    total = 0
    texts_sent = []
    for turn in range(1, len(items) + 1):
        body = {
            "tools": [message(-1, 300)],
            "messages": [message(index) for index in range(turn)],
            "more": items[:turn],
        }
        text = json.dumps(body, separators=style).encode("utf-8", "surrogatepass")
        texts_sent.append(text)
        assert stored.through(text) == text
        total += 1
    assert [json.loads(each) for each in stored.messages] == [
        message(-1, 300),
        *(message(index) for index in range(total)),
    ]


@pytest.mark.parametrize(
    "text",
    [
        b'{"messages":5,"x":"%b"}' % (b"a" * 400),
        b'{"messages":null,"input":"%b"}' % (b"a" * 400),
        b'["%b"]' % (b"a" * 400),
        b'{"messages":[[[[["%b"]]]]]}' % (b"a" * 400),
        b'{"messages":["%b"],"messages":["%b"]}' % (b"a" * 300, b"a" * 300),
        b'{"messages":' + b"[" * 5000 + b"]" * 5000 + b"}",
        b'{"messages":[' + b'{"a":[' * 700 + b"{}" + b"]}" * 700 + b"]}",
        b'\xef\xbb\xbf{"messages":["%b"]}' % (b"a" * 400),
        b'{"messages":[NaN,Infinity,1e999,%b,{"a":"\\ud800%b"}]}' % (b"9" * 5000, b"a" * 300),
        b'{"x":"\\"messages\\":[{","messages":["%b"]}' % (b"\xff" * 400),
    ],
    ids=range(10),
)
def test_hostile_requests_come_back(text: bytes) -> None:
    stored = Stored()
    assert stored.through(text) == text
    assert stored.through(text) == text


def test_what_the_standard_refuses_is_stored_once_too() -> None:
    stored = Stored()
    first = chat([{"content": "\ud800" + LONG * 9, "n": float("nan")}, {"huge": 10**4000, "pad": LONG}])
    second = first.replace(b"]}", b"," + json.dumps(message(7)).encode() + b"]}")
    assert (stored.through(first), stored.through(second)) == (first, second)
    assert len(stored.messages) == 3


@pytest.mark.parametrize("key", ["messages", "input", "tools"])
@pytest.mark.parametrize("value", ["system", "instructions"])
def test_each_dialects_messages_are_found(key: str, value: str) -> None:
    text = json.dumps({"model": "m", value: LONG, key: [message(1), "short", message(2)]}).encode()
    assert [json.loads(element[2]) for element in elements_of(text)] == [LONG, message(1), message(2)]


def test_a_system_prompt_of_blocks_is_one_message() -> None:
    text = json.dumps({"system": [{"type": "text", "text": LONG}], "messages": []}).encode()
    assert [json.loads(element[2]) for element in elements_of(text)] == [[{"type": "text", "text": LONG}]]


def test_what_is_short_stays_text() -> None:
    assert elements_of(b'{"messages":[1,2,"%b"]}' % (b"a" * (MIN_ELEMENT_BYTES - 3))) == []
    assert len(elements_of(b'{"messages":[1,2,"%b"]}' % (b"a" * (MIN_ELEMENT_BYTES - 2)))) == 1


def test_nothing_is_added_where_nothing_may_be() -> None:
    text = chat([message(1, 300), message(2, 300)])
    assert weave(text, {}, None) is None
    one = digest_of(json.dumps(message(1, 300), separators=(",", ":")).encode())
    woven = weave(text, {one: 6}, None)
    assert woven is not None
    assert (woven.messages, woven.needs, references(woven.skeleton, len(text), 7)) == ([], 7, {6})


def test_ten_thousand_tiny_messages_cost_their_own_size_once_and_then_next_to_nothing() -> None:
    """Counted, not timed: skeletons do not grow, new messages are only those that are new."""
    stored = Stored()
    sizes, added = [], []
    for turn in (10_000, 10_001, 10_002):
        text = chat([message(index, 10) for index in range(turn)])
        before = len(stored.messages)
        woven = weave(text, stored.known, before)
        assert woven is not None
        assert stored.through(text) == text
        sizes.append(len(woven.skeleton))
        added.append(len(stored.messages) - before)
    assert added == [10_000, 1, 1]
    assert max(sizes) < 100


def test_one_request_adds_so_many_messages_at_most_and_keeps_the_rest_as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MAX_NEW_MESSAGES", 10)
    stored = Stored()
    text = chat([message(index) for index in range(25)])
    counts = []
    for _ in range(4):
        assert stored.through(text) == text
        counts.append(len(stored.messages))
    assert counts == [10, 20, 25, 25]


def test_work_grows_with_the_text_and_not_with_its_square(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = 0

    def counting(data: bytes) -> bytes:
        nonlocal counted
        counted += 1
        return digest_of(data)

    monkeypatch.setattr(history, "digest_of", counting)
    asked: list[int] = []
    for size in (100, 200, 400):
        texts_sent = [chat([message(index) for index in range(size)], tools=[message(-1)])]
        stored = Stored()
        counted = 0
        stored.through(texts_sent[0])
        assert counted == size + 1
        woven = weave(texts_sent[0], stored.known, None)
        assert woven is not None
        asked.clear()

        def ask(number: int, count: int, stored: Stored = stored) -> list[bytes]:
            asked.extend(range(number, number + count))
            return stored.messages[number : number + count]

        resolve(woven.skeleton, len(texts_sent[0]), woven.needs, ask)
        assert len(asked) == size + 1


def test_a_request_that_repeats_the_last_ones_lists_is_cut_where_it_goes_on(digested: list[bytes]) -> None:
    """Counted: each message is digested in the turn that brings it, whatever stands before and behind the lists."""
    stored = Stored()
    for turn in range(1, 6):
        tools, messages = [message(-2), "short", message(-1)], [message(index) for index in range(3 * turn)]
        text = json.dumps({"temperature": turn, "tools": tools, "messages": messages, "n": "z" * turn}).encode()
        digested.clear()
        assert stored.through(text) == text
        assert [json.loads(each) for each in digested] == (tools[::2] if turn == 1 else []) + messages[-3:]
        assert stored.stretches["messages"].listed == 3 * turn
    # Two requests that go on from the same one: neither changes what the other goes on from.
    on = [text.replace(b'}], "n', b"}, " + json.dumps(message(number)).encode() + b'], "n') for number in (90, 91)]
    woven = [weave(each, stored.known, len(stored.messages), stored.stretches) for each in (*on, on[0])]
    assert woven[0] == woven[2] != woven[1]
    changed = text.replace(b"-2 yyy", b"-2 yxy")
    digested.clear()
    assert stored.through(changed) == changed
    assert len(digested) == 2  # the tools, of which one is another now; the messages are as they were
    assert len(stored.messages) == 18


def test_a_list_of_the_first_request_that_comes_again_is_one_message_and_one_that_does_not_is_several() -> None:
    first = chat([message(1), message(2)], tools=[message(-2), message(-1)])
    found = history.find_messages(first, chat([message(1), message(2), message(3)], tools=[message(-1)]), 5)
    assert found is not None
    pieces = [first[at : at + size] for at, size in found.ranges]
    assert [json.loads(b"[" + each + b"]") for each in pieces] == [
        [message(1), message(2)],
        [message(-2)],
        [message(-1)],
    ]
    assert found.digests == [digest_of(each) for each in pieces]
    [stretch] = found.stretches.values()
    assert (stretch.length, stretch.listed, stretch.operations, stretch.needs) == (len(pieces[0]), 2, [[5, 1]], 6)


def test_what_two_lists_claim_to_begin_with_is_looked_into_again() -> None:
    text = chat([message(1, 200), message(2, 200)], tools=[message(-1)])
    fresh = weave(text, {}, 0)
    assert fresh is not None
    known = {digest: number for number, digest in enumerate(fresh.digests)}
    both = weave(text, known, 3, {**fresh.stretches, "input": fresh.stretches["messages"]})
    assert both is not None
    assert (both.skeleton, both.messages, both.stretches) == (fresh.skeleton, [], fresh.stretches)


@pytest.mark.parametrize("more", [b"", b',{"role":"user","content":"and on"}'])
def test_a_list_that_holds_what_another_began_with_is_looked_into_again(more: bytes) -> None:
    """What both began with stands where it stood, with nothing but space and a comma between."""
    one, other = (b'{"content":"%b"}' % (letter * 200) for letter in (b"a", b"b"))
    middle = b'],"messages":['
    first = b'{"tools":[' + one + middle + other + b"]}"
    text = b'{"tools":[' + one + b",".rjust(len(middle)) + other + more + b'],"messages":[]}'
    stored = weave(first, {}, 0)
    assert stored is not None
    known = {digest: number for number, digest in enumerate(stored.digests)}
    woven = weave(text, known, len(known), stored.stretches)
    assert woven is not None
    messages = dict(enumerate([*stored.messages, *woven.messages]))
    assert resolve(woven.skeleton, len(text), woven.needs, run_of(messages)) == text


def test_a_list_that_holds_messages_as_text_is_looked_into_again(monkeypatch: pytest.MonkeyPatch) -> None:
    text = chat([message(1, 200), message(2, 200)])
    one = weave(text, {digest_of(json.dumps(message(1, 200), separators=(",", ":")).encode()): 0}, None)
    assert one is not None
    assert one.stretches == {}
    monkeypatch.setattr(history, "MAX_NEW_MESSAGES", 1)
    woven = weave(text, {}, 0)
    assert woven is not None
    assert woven.stretches == {}


def whole() -> tuple[bytes, bytes, list[bytes]]:
    text = chat([message(1, 200), message(2, 200), message(3, 200)])
    woven = weave(text, {}, 0)
    assert woven is not None
    return text, woven.skeleton, woven.messages


def test_every_flipped_bit_of_a_skeleton_is_noticed() -> None:
    text, skeleton, messages = whole()
    for bit in range(len(skeleton) * 8):
        damaged = bytearray(skeleton)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DamagedLog):
            resolve(bytes(damaged), len(text), 3, run_of(dict(enumerate(messages))))


def never(number: int, count: int) -> list[bytes]:
    raise AssertionError("no message may be asked for")


@pytest.mark.parametrize(
    "operations",
    [
        [],
        ["text"],
        [[0, 1]],
        [b"a" * 100, {"a": 1}],
        [b"a" * 100, [0]],
        [b"a" * 100, [0, 0]],
        [b"a" * 100, [-1, 1]],
        [b"a" * 100, [0, 2**62]],
        [b"a" * 100, [3, 1]],
        [b"a" * 100, [0, 1, "x"]],
        [b"a" * 200],
        [b"a" * 50],
    ],
    ids=str,
)
def test_a_forged_skeleton_is_refused_before_anything_is_read(operations: list[Any]) -> None:
    for crc in (checksum(b"a" * 100), None, "x"):
        with pytest.raises(DamagedLog):
            resolve(msgspec.msgpack.encode([crc, *operations]), 100, 0, never)


def test_a_skeleton_cannot_make_more_of_little() -> None:
    """A run of long messages, again and again, ends where the part's length ends."""
    asked: list[int] = []

    def big(number: int, count: int) -> list[bytes]:
        asked.append(count)
        return [b"z" * 1000] * count

    def bomb(count: int) -> bytes:
        return msgspec.msgpack.encode([0, *([[0, count, b","]] * 1000)])

    with pytest.raises(DamagedLog, match="more bytes"):
        resolve(bomb(1000), 10_000, 1000, big)
    assert not asked, "so many messages have more bytes, whatever they are"
    with pytest.raises(DamagedLog, match="more bytes"):
        resolve(bomb(10), 10_000, 1000, big)
    assert asked == [10]


def test_a_message_that_is_missing_from_a_run_is_named() -> None:
    text, skeleton, messages = whole()
    with pytest.raises(DamagedLog, match="message 1 of"):
        resolve(skeleton, len(text), 3, run_of({0: messages[0], 2: messages[2]}))


def test_a_skeleton_that_refers_to_more_messages_than_its_text_has_bytes_is_not_followed() -> None:
    bomb = msgspec.msgpack.encode([0, *([[0, 1000]] * 1000)])
    with pytest.raises(DamagedLog, match="more bytes"):
        references(bomb, 10_000, 1000)
    assert references(bomb, 1_000_000, 1000) == set(range(1000))


def test_a_damaged_message_is_not_taken_for_the_text() -> None:
    text, skeleton, messages = whole()
    swapped: list[MessageRun] = [
        run_of({0: messages[1], 1: messages[0], 2: messages[2]}),
        run_of({0: messages[0], 1: messages[0], 2: messages[2]}),
    ]
    for other in swapped:
        with pytest.raises(DamagedLog):
            resolve(skeleton, len(text), 3, other)


def test_messages_in_another_order_are_still_referred_to() -> None:
    stored = Stored()
    rng = random.Random(5)
    messages = [message(index, 80) for index in range(20)]
    for _ in range(30):
        some = rng.sample(messages, rng.randrange(3, 20))
        text = chat(some)
        assert stored.through(text) == text
    assert len(stored.messages) == 20
