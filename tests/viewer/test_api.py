"""What the viewer's requests are answered with, over ASGI in this process, on every kind of directory."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from gym_capture.directory.sealing import seal_at_rest
from gym_capture.reading.run_stats import run_stats
from gym_capture.storage.names import nemo_gym_file
from gym_capture.storage.store import CaptureStore
from gym_capture.viewer.app import STATIC
from gym_capture.viewer.captured import Captured, OpenedDirectory
from gym_capture.viewer.gate import HEADERS
from tests.reading.calls import SYSTEM, chat, flip, user, written
from tests.storage.owners import Batch
from tests.viewer.pages import HOSTILE, HOSTILE_SHOWN, TOKEN, LiveRun, conversation, viewer


async def got(client: httpx.AsyncClient, path: str, **parameters: Any) -> Any:
    answer = await client.get(path, params=parameters)
    assert answer.status_code == 200, answer.text
    return answer.json()


def ids(answer: Any) -> list[str]:
    return [row["rollout_id"] for row in answer["page"]["rows"]]


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def touch(directory: Path) -> None:
    """Let the log look as if something had been appended."""
    for path in directory.glob("segment-*.log"):
        os.utime(path, (1, 1))


def break_header(directory: Path) -> str:
    """Damage the header of the only segment; its name."""
    (segment,) = directory.glob("segment-*.log")
    with segment.open("r+b") as log:
        log.write(b"?" * 8)
    return segment.name


@pytest.fixture
def captures(tmp_path: Path) -> Path:
    directory = tmp_path / "captures"
    written(
        directory,
        {"7-0": conversation("7-0"), "7-1": [chat("a", [user("hi")])], "8-0": [chat("b", [user("hi")])]},
        Batch().claim("8-0", 1).claim("9-0", 2).claim("7-1", 3).release("7-1", 3),
    )
    return directory


async def test_the_run_with_its_plots(captures: Path) -> None:
    async with viewer(captures) as client:
        found = await got(client, "api/run")
    run = found["run"]
    assert found["about"] == {"directory": str(captures), "damage": None}
    assert found["reading"] == {"read": 4, "known": 4}
    assert (run["rollouts"], run["calls"], run["failed"], run["tokens_in"], run["tokens_out"]) == (4, 5, 1, 40, 8)
    assert run["statuses"] == {"observed": 1, "open": 2, "incomplete": 1, "unobserved": 0}
    assert run["errors"] == {"rate_limit": 1}
    assert run["gaps"]["model_call_capture_incomplete"] == 1
    assert (found["claims_open"], [claim["rollout_id"] for claim in found["claims"]]) == (2, ["8-0", "9-0"])
    assert run["over_time"] == {
        "start": 1001.0,
        "step_s": 1.0,
        "bins": [[3, 0, 30, 6], [0, 0, 0, 0], [2, 1, 10, 2]],
        "untimed": 0,
    }
    assert run["latency_ms"]["figures"]["count"] == sum(run["latency_ms"]["plot"]["counts"]) == 5
    assert dict(map(tuple, run["ttft_ms"]["figures"]["quantiles"]))[0.5] == 100.0


async def test_tokens_count_the_calls_of_verifiers_too_as_stats_does(tmp_path: Path) -> None:
    cached = {"prompt_tokens": 10, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 6}}
    calls = [
        chat("a", [user("hi")]),
        chat("b", [user("judge")], verifier_invocation={"invocation_id": "v", "name": "j"}),
    ]
    for each in calls:
        each["response"]["usage"] = cached
    stats = run_stats(written(tmp_path / "captures", {"7-0": calls}))
    async with viewer(tmp_path / "captures") as client:
        run = (await got(client, "api/run"))["run"]
    assert (stats.tokens_in, stats.tokens_out, stats.cached_tokens) == (20, 4, 12)
    assert (run["tokens_in"], run["tokens_out"], run["cached_tokens"]) == (20, 4, 12)


async def test_a_run_that_is_sealed_meanwhile_has_no_bytes_in_a_log_any_more(tmp_path: Path) -> None:
    directory = tmp_path / "captures"
    written(directory, {"7-0": [chat("a", [user("hi")])], "7-1": [chat("b", [user("hi")])]})
    async with viewer(directory) as client:
        first = await client.get("api/rollouts/7-0")
        assert (await got(client, "api/run"))["run"]["stored_bytes"] > 0
        seal_at_rest(directory)
        run = (await got(client, "api/run"))["run"]
        assert (run["calls"], run["tokens_in"], run["stored_bytes"]) == (2, 20, None)
        page = await got(client, "api/rollouts", sort="tokens_in")
        assert [row["stored_bytes"] for row in page["page"]["rows"]] == [None, None]
        again = await client.get("api/rollouts/7-0", headers={"if-none-match": first.headers["etag"]})
        assert (again.status_code, again.json()["summary"]["stored_bytes"]) == (200, None)


async def test_the_list_pages_filters_and_sorts(captures: Path) -> None:
    async with viewer(captures) as client:
        assert ids(await got(client, "api/rollouts")) == ["7-0", "7-1", "8-0", "9-0"]
        page = await got(client, "api/rollouts", limit=2, offset=2)
        assert (ids(page), page["page"]["matching"], page["page"]["known"]) == (["8-0", "9-0"], 4, 4)
        assert ids(await got(client, "api/rollouts", text="7-")) == ["7-0", "7-1"]
        assert ids(await got(client, "api/rollouts", errors=1)) == ["7-0"]
        assert ids(await got(client, "api/rollouts", open=1)) == ["8-0", "9-0"]
        assert ids(await got(client, "api/rollouts", status="incomplete")) == ["7-1"]
        assert ids(await got(client, "api/rollouts", model="other")) == []
        assert ids(await got(client, "api/rollouts", sort="tokens_out", descending=1, limit=1)) == ["7-0"]
        assert ids(await got(client, "api/rollouts", sort="tokens_out", descending=1, limit=1, offset=1)) == ["7-1"]


@pytest.mark.parametrize("words", ["sort=nothing", "status=fine", "offset=-1", "limit=many", "offset=٣"])
async def test_a_query_that_means_nothing_is_told(captures: Path, words: str) -> None:
    async with viewer(captures) as client:
        answer = await client.get(f"api/rollouts?{words}")
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "ConfigError"


async def test_a_rollouts_conversation_and_its_pages(captures: Path) -> None:
    async with viewer(captures) as client:
        found = await got(client, "api/rollouts/7-0")
        assert (found["rollout_id"], found["count"], found["summary"]["status"]) == ("7-0", 3, "observed")
        first, second, third = found["turns"]
        assert [message["role"] for message in first["added"]] == ["system", "user"]
        assert [piece["kind"] for piece in first["answer"][0]["pieces"]] == ["reasoning", "tool_call"]
        assert [(each["role"], each["pieces"][0]["text"]) for each in second["added"]] == [("tool", "blue ")]
        assert (second["beside"], third["history"], third["error"]) == ([2], "repeats", "rate_limit")
        page = await got(client, "api/rollouts/7-0", first=1, limit=1)
        assert ([turn["call_index"] for turn in page["turns"]], page["first"], page["count"]) == ([1], 1, 3)
        waiting = await got(client, "api/rollouts/9-0")
        assert (waiting["count"], len(waiting["waiting"]), waiting["summary"]["status"]) == (0, 1, "open")


async def test_a_rollouts_timeline(captures: Path) -> None:
    async with viewer(captures) as client:
        found = await got(client, "api/rollouts/7-0/timeline")
    assert (found["lanes"], found["length_s"]) == (2, 3.5)
    assert [(bar["call_index"], bar["lane"], bar["start_s"]) for bar in found["bars"]] == [
        (0, 0, 0.0),
        (1, 0, 2.0),
        (2, 1, 2.5),
    ]


async def test_raw_payloads_are_the_calls_own(captures: Path) -> None:
    async with viewer(captures) as client:
        found = await got(client, "api/rollouts/7-0/calls/2")
        assert json.loads(found["payloads"]["response"]) == {"error": "slow down"}
        assert json.loads(found["payloads"]["request"])["messages"][0] == SYSTEM
        assert (await got(client, "api/rollouts/7-0/calls/3"))["payloads"] is None


async def test_two_rollouts_compared(captures: Path) -> None:
    async with viewer(captures) as client:
        found = await got(client, "api/difference", left="7-0", right="7-1")
        assert (found["left"], found["right"], found["same"], found["parts_at"]) == ("7-0", "7-1", False, 0)
        assert [(pair["left"], pair["right"]) for pair in found["pairs"]] == [(0, 0), (1, None), (2, None)]
        assert (await got(client, "api/difference", left="7-1", right="8-0"))["same"] is False
        assert (await got(client, "api/difference", left="7-1", right="7-1"))["same"] is True


async def test_an_unknown_rollout_is_told_with_those_that_are_near(captures: Path) -> None:
    async with viewer(captures) as client:
        answer = await client.get("api/rollouts/7-2")
        assert answer.status_code == 404
        assert "Did you mean 7-1, 7-0?" in answer.json()["error"]["message"]
        assert (await client.get("api/rollouts/%20bad%1b/timeline")).status_code == 404
        assert (await client.get("api/difference?left=7-0")).status_code == 404


@pytest.mark.parametrize(
    "path", [f"/{TOKEN}x/api/run", f"/{TOKEN[:-1]}/api/run", "/", "/api/run", f"/{TOKEN}", "//", "/%ff/"]
)
async def test_without_the_token_nothing_is_answered(captures: Path, path: str) -> None:
    async with viewer(captures) as client:
        for wanted in (path, f"{path}/static/main.js"):
            if wanted.startswith(f"/{TOKEN}/"):
                continue
            answer = await client.get(httpx.URL(scheme="http", host="127.0.0.1", port=4711, path=wanted))
            assert answer.status_code == 403
            assert TOKEN not in answer.text
            assert answer.headers["content-security-policy"] == HEADERS["content-security-policy"]


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "127.0.0.1:80", "127.0.0.1:4711.evil.example", ""])
async def test_another_host_is_refused(captures: Path, host: str) -> None:
    async with viewer(captures) as client:
        assert (await client.get("api/run", headers={"host": host})).status_code == 403
        assert (await client.get("api/run", headers={"host": "localhost:4711"})).status_code == 200
        twice = [("host", "127.0.0.1:4711"), ("host", host)]
        assert (await client.get("api/run", headers=twice)).status_code == 403


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
async def test_it_only_reads(captures: Path, method: str) -> None:
    before = contents(captures)
    async with viewer(captures) as client:
        answer = await client.request(method, "api/run")
        assert (answer.status_code, answer.text) == (405, "the viewer only reads\n")
        await got(client, "api/run")
    assert contents(captures) == before


async def test_the_page_loads_nothing_from_elsewhere_and_runs_nothing_inline(captures: Path) -> None:
    async with viewer(captures) as client:
        page = await client.get("")
        assert page.headers["content-type"].startswith("text/html")
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "://" not in page.text
        assert "<script>" not in page.text
        assert " style=" not in page.text
        script = await client.get("static/main.js")
        assert script.headers["content-type"].startswith("text/javascript")
        assert (await client.get("static/..%2f..%2fapp.py")).status_code == 404


def test_no_module_of_the_page_makes_markup_of_text() -> None:
    modules = {path.name: path.read_text(encoding="utf-8") for path in STATIC.glob("*.js")}
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "srcdoc"):
        assert [name for name, text in modules.items() if word in text] == []
    assert len(modules) >= 8


async def test_hostile_text_leaves_as_text_that_is_written_out(tmp_path: Path) -> None:
    directory = tmp_path / "captures"
    calls = conversation("7-0", HOSTILE)
    calls[0]["response"]["model"] = HOSTILE
    calls[0]["model_call_id"] = HOSTILE
    calls[2]["error_category"] = HOSTILE
    calls[0]["request"][HOSTILE] = float("nan")
    written(directory, {"7-0": calls})
    paths = ["api/run", "api/rollouts", "api/rollouts/7-0", "api/rollouts/7-0/timeline", "api/rollouts/7-0/calls/1"]
    async with viewer(directory) as client:
        for path in [*paths, "api/difference?left=7-0&right=7-0"]:
            answer = await client.get(path)
            assert answer.status_code == 200
            assert answer.headers["content-type"] == "application/json"
            for text in ("\x1b", "\u202e", "\\u001b", "\\u202e", "\\u0000"):
                # What JSON would write as an escape, the page would make a character of.
                assert text not in answer.text.replace("\\\\", "")
        found = await got(client, "api/rollouts/7-0")
    assert found["turns"][1]["added"][0]["pieces"][0]["text"] == f"blue {HOSTILE_SHOWN}"
    assert found["summary"]["models"] == sorted(["m", HOSTILE_SHOWN], key=lambda each: each != HOSTILE_SHOWN)


async def test_long_texts_are_cut_and_counted(tmp_path: Path) -> None:
    directory = tmp_path / "captures"
    long = user("x" * 3000 + "\n" + "y\n" * 90_000)
    written(directory, {"long": [chat("1", [long] * 12)], "many": [chat("2", [user("z")] * 300)]})
    async with viewer(directory) as client:
        turn = (await got(client, "api/rollouts/long"))["turns"][0]
        assert turn["added"][0]["pieces"][0]["text"].endswith("… (123,001 more characters)")
        assert len(turn["added"]) + turn["added_left_out"] == 12
        assert sum(len(message["pieces"][0]["text"]) for message in turn["added"]) <= 400_000
        raw = (await got(client, "api/rollouts/long/calls/0"))["payloads"]["request"]
        assert "more characters)" in raw[-40:]
        turn = (await got(client, "api/rollouts/many"))["turns"][0]
        assert (len(turn["added"]), turn["added_left_out"]) == (100, 200)


async def test_a_page_that_has_the_version_is_told_so(captures: Path) -> None:
    paths = [
        "api/run",
        "api/rollouts?gaps=1",
        "api/rollouts/7-0",
        "api/rollouts/7-0/timeline",
        "api/rollouts/7-0/calls/0",
    ]
    async with viewer(captures) as client, viewer(captures) as other:
        for path in paths:
            tag = (await client.get(path)).headers["etag"]
            again = await client.get(path, headers={"if-none-match": tag})
            assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
            assert (await other.get(path, headers={"if-none-match": tag})).status_code == 200


async def test_what_is_written_meanwhile_is_shown_and_the_rest_keeps_its_version(tmp_path: Path) -> None:
    live = LiveRun(tmp_path / "captures")
    live.commit("a", chat("1", [user("one")]))
    live.commit("b", chat("2", [user("one")]))
    async with viewer(live.directory) as client:
        tags = {
            path: (await client.get(path)).headers["etag"] for path in ("api/run", "api/rollouts/a", "api/rollouts/b")
        }
        assert (await got(client, "api/rollouts", sort="calls", descending=1, limit=1))["page"]["rows"][0]["calls"] == 1
        live.commit("b", chat("3", [user("two")], at=5))
        status = {
            path: (await client.get(path, headers={"if-none-match": tag})).status_code for path, tag in tags.items()
        }
        assert status == {"api/run": 200, "api/rollouts/a": 304, "api/rollouts/b": 200}
        run = (await got(client, "api/run"))["run"]
        assert (run["calls"], sum(run["latency_ms"]["plot"]["counts"]), len(run["over_time"]["bins"])) == (3, 3, 6)
        assert ids(await got(client, "api/rollouts", sort="tokens_in", descending=1)) == ["b", "a"]
        live.send(Batch().clear("b", "again"))
        run = (await got(client, "api/run"))["run"]
        assert (run["calls"], sum(run["latency_ms"]["plot"]["counts"]), run["statuses"]["unobserved"]) == (1, 1, 1)
    live.stop()


async def test_reading_many_rollouts_is_done_in_slices_and_told(tmp_path: Path) -> None:
    directory = tmp_path / "captures"
    written(directory, {f"{number}-0": [chat(str(number), [])] for number in range(5)})
    async with viewer(directory, slice_s=0.0) as client:
        first = await client.get("api/rollouts?sort=tokens_in")
        assert "etag" not in first.headers
        assert (first.json()["page"], first.json()["reading"]) == (None, {"read": 1, "known": 5})
        assert len(ids(await got(client, "api/rollouts"))) == 5
        answers = [await client.get("api/rollouts?sort=tokens_in") for _ in range(4)]
        assert [answer.json()["reading"]["read"] for answer in answers] == [2, 3, 4, 5]
        assert len(ids(answers[-1].json())) == 5
        assert (await got(client, "api/run"))["run"]["calls"] == 5


async def test_damage_is_told_and_the_rest_is_shown(captures: Path) -> None:
    flip(captures, b"sky of 7-0")
    async with viewer(captures) as client:
        turns = (await got(client, "api/rollouts/7-0"))["turns"]
        assert turns[0]["damaged"] is True
        assert (await got(client, "api/rollouts/7-0/calls/0"))["payloads"] is None
        assert len(ids(await got(client, "api/rollouts"))) == 4


async def test_a_damaged_log_names_its_places(captures: Path) -> None:
    segment = break_header(captures)
    async with viewer(captures) as client:
        damage = (await got(client, "api/rollouts"))["about"]["damage"]
    assert damage["places"] == [f"the header of {segment}"]


async def test_a_directory_that_vanishes_is_told_and_one_that_comes_back_is_shown(captures: Path) -> None:
    aside = captures.with_name("aside")
    async with viewer(captures) as client:
        tag = (await client.get("api/run")).headers["etag"]
        os.rename(captures, aside)
        for path in ("api/run", "api/rollouts", "api/rollouts/7-0"):
            gone = await client.get(path, headers={"if-none-match": tag})
            assert gone.status_code == 503
            assert str(captures) in gone.json()["error"]["message"]
        os.mkdir(captures)
        assert (await client.get("api/run")).json()["error"]["type"] == "MissingRunMarker"
        os.rmdir(captures)
        os.rename(aside, captures)
        assert (await got(client, "api/run"))["run"]["calls"] == 5


async def test_a_directory_that_is_made_anew_is_another_run(captures: Path) -> None:
    async with viewer(captures) as client:
        assert (await got(client, "api/run"))["run"]["failed"] == 1
        shutil.rmtree(captures)
        # The same rollout has more calls than before, so only the marker tells that its first ones are others.
        failed = [conversation(name)[2] for name in ("7-0", "third")]
        written(captures, {"7-0": [*failed, *conversation("other")[:2]]})
        run = (await got(client, "api/run"))["run"]
        assert (run["rollouts"], run["calls"], run["failed"]) == (1, 4, 2)


async def test_a_refresh_that_fails_leaves_nothing_half_read(captures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(store: CaptureStore) -> None:
        raise OSError(5, "Input/output error")

    async with viewer(captures) as client:
        await got(client, "api/run")
        opened: list[None] = []
        monkeypatch.setattr(CaptureStore, "refresh", fail)
        touch(captures)
        assert "Input/output error" in (await client.get("api/run")).json()["error"]["message"]
        monkeypatch.undo()
        begin = CaptureStore.__init__
        monkeypatch.setattr(CaptureStore, "__init__", lambda *given: opened.append(begin(*given)))
        assert (await got(client, "api/run"))["run"]["calls"] == 5
    assert len(opened) == 1


async def test_nemo_gyms_files_are_shown_and_followed(tmp_path: Path) -> None:
    path = tmp_path / nemo_gym_file("n")
    path.write_text(json.dumps(chat("1", [user("one")])) + "\n")
    async with viewer(tmp_path) as client:
        first = await client.get("api/rollouts/n")
        assert first.json()["count"] == 1
        with path.open("a") as lines:
            lines.write(json.dumps(chat("2", [user("two")], at=3)) + "\n")
        again = await client.get("api/rollouts/n", headers={"if-none-match": first.headers["etag"]})
        assert (again.status_code, again.json()["count"]) == (200, 2)
        assert (await got(client, "api/run"))["run"]["calls"] == 2
        path.unlink()
        found = await got(client, "api/run")
        assert (found["run"]["calls"], found["reading"]) == (0, {"read": 0, "known": 0})


async def test_a_page_is_told_when_the_disk_does_not_answer_and_nothing_is_queued_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path / "run", {"r": [chat("1", [user("hi")])]})
    asked, answers = [], threading.Event()
    look = Captured.look

    def hang(captured: Captured) -> OpenedDirectory:
        asked.append(captured)
        assert answers.wait(60)
        return look(captured)

    monkeypatch.setattr(Captured, "look", hang)
    async with viewer(tmp_path / "run", patience_s=0.01) as client:
        for _ in range(3):
            told = await client.get("api/run")
            assert (told.status_code, told.json()["error"]["type"]) == (503, "Silent")
        assert len(asked) == 1
        answers.set()
        for _ in range(100):
            told = await client.get("api/run")
            if told.status_code == 200:
                break
            await asyncio.sleep(0.05)
        assert told.json()["run"]["calls"] == 1
