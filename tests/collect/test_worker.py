"""A worker runs the function, and its count travels back however it ends."""

from __future__ import annotations

import asyncio
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest

from gym_capture.collect import replay
from gym_capture.collect.attempt import Failed, Finished
from gym_capture.collect.pool import Assignment
from gym_capture.collect.proxies import ProxyAddress
from gym_capture.collect.session import Session
from gym_capture.collect.worker import RolloutWorker, WorkerSpec
from gym_capture.errors import ConfigError
from gym_capture.reach.disabled import disabled_client
from tests.collect.sessions import RecordingCapture, recording_session


async def rollout(row: dict[str, Any], session: Session) -> Any:
    """Does what the row says, after two model calls."""
    for _ in range(2):
        async with session.claim(dialect="chat") as call:
            call.complete(request={}, response={})
    do = row.get("do")
    if do == "raise":
        raise KeyError("tool")
    if do == "exit":
        sys.exit(3)
    if do == "hang":
        await asyncio.Event().wait()
    if do == "time out":
        raise TimeoutError("the tool was slow")
    if do == "list":
        return [1]
    if do == "nothing":
        return None
    return {"id": session.rollout_id, "attempt": session.attempt, "generation": session.generation}


async def run(row: dict[str, Any], timeout_s: float | None = None) -> tuple[Finished | Failed, RecordingCapture]:
    capture = RecordingCapture()
    spec = WorkerSpec(f"{__name__}:rollout", (), capture, timeout_s)  # type: ignore[arg-type]  # all that is used of it
    worker = RolloutWorker(spec)
    assert await worker.prepare() is None
    return await worker.run(Assignment(row, "0-0-a1", 1, 7)), capture


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, __name__, sys.modules[rollout.__module__])


async def test_a_function_sees_its_attempt_and_its_record_comes_back() -> None:
    ending, capture = await run({})
    assert ending == Finished({"id": "0-0-a1", "attempt": 1, "generation": 7}, 2)
    assert capture.handles == [("0-0-a1", 7)]


async def test_a_function_may_return_nothing() -> None:
    assert (await run({"do": "nothing"}))[0] == Finished(None, 2)


@pytest.mark.parametrize(
    ("do", "error_type", "message"),
    [
        ("raise", "KeyError", "'tool'"),
        ("exit", "SystemExit", "3"),
        ("time out", "TimeoutError", "the tool was slow"),
        ("list", "InvalidRecord", "the rollout function returned a list; it returns the record, a dict, or None"),
    ],
)
async def test_however_it_fails_the_count_travels_back(do: str, error_type: str, message: str) -> None:
    ending, _ = await run({"do": do})
    assert isinstance(ending, Failed)
    assert (ending.error_type, ending.message, ending.issued) == (error_type, message, 2)
    assert do == "list" or "in rollout" in ending.traceback


async def test_a_rollout_over_its_time_has_failed() -> None:
    ending, _ = await run({"do": "hang"}, timeout_s=0.2)
    assert ending == Failed("RolloutTimeout", "took longer than 0.2 s", "", 2)


async def test_a_function_that_is_not_there_is_told_not_raised(tmp_path: Path) -> None:
    told = await RolloutWorker(WorkerSpec("absent_module:rollout", (), RecordingCapture(), None)).prepare()  # type: ignore[arg-type]
    assert told is not None
    assert told[0] == "RolloutFunctionError"
    assert "in a worker: cannot import collect.rollout=absent_module:rollout" in told[1]


async def test_calls_made_elsewhere_are_counted_when_told() -> None:
    session = recording_session(RecordingCapture(), {}, generation=3)
    async with session.claim(dialect="chat") as call:
        call.complete()
    session.count_issued(4)
    assert session.issued == 5
    assert session.token == "0-0~3"
    with pytest.raises(ValueError, match="cannot be -1"):
        session.count_issued(-1)


async def test_a_replay_records_every_exchange_in_order_and_returns_the_record() -> None:
    capture = RecordingCapture()
    row = {"record": {"reward": 1.0}, "exchanges": [{"n": 1}, {"n": 2}, {"n": 3}]}
    assert await replay.rollout(row, recording_session(capture, row)) == {"reward": 1.0}
    assert [exchange["n"] for exchange in capture.exchanges] == [1, 2, 3]


@pytest.mark.parametrize("row", [{}, {"record": {}}, {"record": [], "exchanges": []}, {"record": {}, "exchanges": {}}])
async def test_a_row_that_cannot_be_replayed_says_what_one_looks_like(row: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r'a row to replay is \{"record"'):
        await replay.rollout(row, recording_session(RecordingCapture(), row))


async def test_a_session_travels_and_its_copy_counts_for_itself() -> None:
    session = Session(row={"q": 1}, rollout_id="0-0", attempt=2, generation=5, capture=disabled_client())
    async with session.claim(dialect="chat") as call:
        call.complete()
    copy = pickle.loads(pickle.dumps(session))
    assert (copy.row, copy.rollout_id, copy.attempt, copy.token) == ({"q": 1}, "0-0", 2, "0-0~5")
    async with copy.claim(dialect="chat") as call:
        call.complete()
    session.count_issued(copy.issued)
    assert session.issued == 2


async def call_url(row: dict[str, Any], session: Session) -> dict[str, Any]:
    """Tells where its model calls would go, and leaves two clients open."""
    openai, anthropic = session.openai(), session.anthropic(api_key="k")
    left_open.extend([openai, anthropic])
    return {"base_url": session.base_url, "openai": str(openai.base_url), "anthropic": str(anthropic.base_url)}


left_open: list[Any] = []


async def test_a_function_calls_the_proxy_of_its_node_and_its_clients_are_closed_after_it() -> None:
    spec = WorkerSpec(f"{__name__}:call_url", (), disabled_client(), None)
    worker = RolloutWorker(spec, node="here")
    assert await worker.prepare() is None
    proxies = (ProxyAddress("there", "http://there:1"), ProxyAddress("here", "http://here:1"))
    ending = await worker.run(Assignment({}, "0-0-a1", 1, 7, proxies))
    assert isinstance(ending, Finished)
    assert ending.record == {
        "base_url": "http://here:1/ng-rollout/0-0-a1~7",
        "openai": "http://here:1/ng-rollout/0-0-a1~7/v1/",
        "anthropic": "http://here:1/ng-rollout/0-0-a1~7/",
    }
    assert [client.is_closed() for client in left_open] == [True, True]


def test_without_a_proxy_a_base_url_is_refused_with_the_key_to_set() -> None:
    session = recording_session(RecordingCapture(), {})
    with pytest.raises(ConfigError, match=r"set proxy\.upstream"):
        _ = session.base_url


async def test_a_session_pickles_without_the_clients_that_it_made() -> None:
    session = Session(
        row={}, rollout_id="0-0", attempt=0, generation=1, capture=disabled_client(), proxy="http://here:1"
    )
    session.openai()
    copy = pickle.loads(pickle.dumps(session))
    assert copy.base_url == session.base_url == "http://here:1/ng-rollout/0-0~1"
    await copy.close_clients()
    await session.close_clients()
