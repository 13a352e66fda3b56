"""Exchanges with their exact bytes, from the log and from NeMo Gym's files, and as lines of those files."""

from __future__ import annotations

import json

import pytest
from hypothesis import given as for_any
from hypothesis import settings

from gym_capture.model.captured import captured_value
from gym_capture.model.exchange import PAYLOADS, seal
from gym_capture.model.rows import PartFlag, PartKind
from gym_capture.storage.nemo_gym import call_of_line, line_of_call, read_nemo_gym_lines
from gym_capture.storage.store import CaptureStore
from gym_capture.testing.faulty_files import FaultyDisk
from tests.model.exact import exact
from tests.storage.captured_rollouts import HOSTILE, call, exchanges, listed
from tests.storage.owners import Batch, Owner


def test_the_log_gives_exchanges_with_their_bytes_and_what_is_known_of_their_rollout() -> None:
    disk = FaultyDisk()
    owner = Owner(disk.view())
    batch = Batch()
    for number, each in enumerate(HOSTILE):
        batch.commit("r", {"dialect": "chat", "model_call_id": f"call-{number}", **each})
    owner.send(batch.claim("r", 1).claim("r", 2).release("r", 2), 1)
    found = listed(CaptureStore(disk.view()).captured("r"))
    assert found is not None
    assert list(found.calls) == [call(number, each) for number, each in enumerate(HOSTILE)]
    assert (found.generation, found.indexes, found.reasons, found.outstanding) == (0, 6, {"released": 1}, 1)


def test_a_damaged_exchange_is_left_out_and_its_index_counts() -> None:
    disk = FaultyDisk()
    owner = Owner(disk.view())
    for number in range(3):
        given = {"dialect": "chat", "model_call_id": str(number), "request": {"n": number}}
        owner.send(Batch().commit("r", given), number + 1)
    [name] = [name for name in disk.view().names() if name.startswith("segment")]
    disk.flip_bit(name, 8 * disk.content(name).index(b'{"n":1}'))
    found = listed(CaptureStore(disk.view()).captured("r"))
    assert found is not None
    assert [each.call_index for each in found.calls] == [0, 2]
    assert found.indexes == 3


def test_nemo_gyms_files_give_the_bytes_of_bodies_as_they_stand() -> None:
    disk = FaultyDisk()
    line = b'{"model_call_id":"m", "request": {"a" : 1.50,"a":2}, "response": null, "request_raw": "x\\ny"}'
    disk.put("r.capture.jsonl", line + b"\nnot JSON\n" + line)
    disk.put("r.capture.incomplete", b"")
    store = CaptureStore(disk.view())
    found = listed(store.captured("r"))
    assert found is not None
    first, second = found.calls
    assert (first.call_index, second.call_index, found.indexes, found.reasons) == (0, 2, 3, {})
    assert first.texts[PartKind.REQUEST] == (b'{"a" : 1.50,"a":2}', int(PartFlag.BYTES))
    assert [each.exchange() for each in (first, second)] == store.read_available("r")[0]


@pytest.mark.parametrize("number", range(len(HOSTILE)))
def test_a_hard_exchange_is_read_back_from_its_line(number: int) -> None:
    given_call = call(0, HOSTILE[number])
    line, nonstandard = line_of_call(given_call)
    again = call_of_line(0, line, strict=False)
    assert again is not None
    assert b"\n" not in line
    assert nonstandard == (number == 0)
    assert exact(again.exchange()) == exact(given_call.exchange())
    if not nonstandard:
        assert read_nemo_gym_lines(line) == ([(0, given_call.exchange())], 0)
    if number in (3, 5):
        assert again.texts[PartKind.META] == given_call.texts[PartKind.META]


@settings(max_examples=25, deadline=None)
@for_any(exchanges)
def test_any_exchange_is_read_back_from_its_line(exchange: dict[str, object]) -> None:
    given_call = call(0, exchange)
    again = call_of_line(0, line_of_call(given_call)[0], strict=False)
    assert again is not None
    assert exact(again.exchange()) == exact(given_call.exchange())
    if given_call.fields()["error_category"] != "capture_parse_error":  # whose text a line cannot tell from any other
        assert again.fields() == given_call.fields()
    line, nonstandard = line_of_call(given_call)
    assert nonstandard or line_of_call(again) == (line, False)


def test_bodies_on_one_line_keep_every_byte_and_with_them_the_exchanges_identity() -> None:
    given_call = call(0, {"request": b'{"a" : 1.50,"a":2}', "response": b"[ 1e2 ]"})
    again = call_of_line(0, line_of_call(given_call)[0])
    assert again == given_call


@pytest.mark.parametrize("line", [b"[1]", b"{", b"\xff", b'{"a": ' + b"[" * 100_000], ids=range(4))
def test_what_is_no_object_is_damaged_however_lenient_the_reader(line: bytes) -> None:
    assert call_of_line(0, line) is None
    assert call_of_line(0, line, strict=False) is None


def test_an_exchange_that_lacks_everything_is_kept() -> None:
    found = captured_value(7, {"request": {"n": 2**80}})
    assert (found.call_index, found.model_call_id) == (7, "")
    assert found.exchange() == {"request": {"n": 2**80}}
    assert found.fields()["tool_calls"] == []


@pytest.mark.parametrize("exchange", HOSTILE, ids=range(len(HOSTILE)))
def test_packed_again_it_is_the_same_exchange(exchange: dict[str, object]) -> None:
    whole = {"dialect": "chat", "model_call_id": "call-0", **exchange}
    again = call(0, exchange).packed()
    sealed = seal(whole)
    assert (again.model_call_id, again.digest, again.parts, again.body) == (
        sealed.model_call_id,
        sealed.digest,
        sealed.parts,
        sealed.body,
    )


def test_the_raw_bytes_of_a_call_are_those_of_its_parts() -> None:
    found = call(0, {"request": b"12345"})
    assert found.raw_bytes == len(found.record) + len(found.texts[PartKind.META].data) + 5
    assert json.loads(found.texts[PartKind.META].data) == {
        "dialect": "chat",
        "model_call_id": "call-0",
        "request": None,
    }
    assert PAYLOADS["request"] in found.texts
