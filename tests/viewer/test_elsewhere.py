"""The viewer on a sealed run that lies elsewhere: as in its directory, and what is told where it cannot be read."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from gym_capture.cli.main import app
from gym_capture.directory.carrying import carry_sealed
from gym_capture.directory.sealing import seal_at_rest
from tests.reading.calls import chat, user, written
from tests.storage.s3_server import BUCKET, S3Server, s3_server
from tests.viewer.pages import conversation, viewer

CALLS = "sealed-00000002/part-00000001.calls.parquet"


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("sealed") / "run"
    written(directory, {"7-0": conversation("7-0"), "7-1": [chat("a", [user("hi")])]})
    seal_at_rest(directory)
    return directory


async def got(client: httpx.AsyncClient, path: str) -> Any:
    answer = await client.get(path)
    assert answer.status_code == 200, answer.text
    return answer.json()


PATHS = [
    "api/run",
    "api/rollouts",
    "api/rollouts?sort=tokens_out&descending=1",
    "api/rollouts/7-0",
    "api/rollouts/7-0/timeline",
    "api/rollouts/7-0/calls/2",
    "api/difference?left=7-0&right=7-1",
]


async def test_it_shows_what_it_shows_of_the_directory(s3: S3Server, sealed: Path) -> None:
    uri = s3.uri(f"{BUCKET}/viewed")
    carry_sealed(sealed, uri)
    async with viewer(uri) as there, viewer(sealed) as here:
        for path in PATHS:
            found, expected = await got(there, path), await got(here, path)
            assert found.pop("about") == {"directory": uri, "damage": None}
            expected.pop("about")
            assert found == expected, path
        assert json.loads((await got(there, "api/rollouts/7-0/calls/2"))["payloads"]["response"]) == {
            "error": "slow down"
        }
        asked = len(s3.requests)
        listed = await there.get("api/run")
        again = await there.get("api/run", headers={"if-none-match": listed.headers["etag"]})
        assert (again.status_code, len(s3.requests)) == (304, asked)  # what was sealed does not change


async def test_a_run_at_a_file_uri_is_shown(sealed: Path, tmp_path: Path) -> None:
    uri = f"file://{tmp_path}/there"
    carry_sealed(sealed, uri)
    async with viewer(uri) as client:
        assert [row["rollout_id"] for row in (await got(client, "api/rollouts"))["page"]["rows"]] == ["7-0", "7-1"]


async def test_damage_there_is_told_and_the_rest_is_shown(sealed: Path, tmp_path: Path) -> None:
    there = tmp_path / "there"
    carry_sealed(sealed, f"file://{there}")
    whole = (there / CALLS).read_bytes()
    (there / CALLS).write_bytes(whole[:-50])
    async with viewer(f"file://{there}") as client:
        assert [row["damaged"] for row in (await got(client, "api/rollouts"))["page"]["rows"]] == [3, 1]
        assert (await got(client, "api/rollouts/7-0/calls/2"))["payloads"] is None
        found = await got(client, "api/run")
        assert (found["run"]["damaged"], found["run"]["failed"]) == (4, None)
        assert found["about"]["damage"]["places"] == [f"calls in {CALLS}"]


async def test_a_run_that_cannot_be_opened_is_told(sealed: Path, tmp_path: Path) -> None:
    there = tmp_path / "there"
    carry_sealed(sealed, f"file://{there}")
    whole = (there / "CONTENTS").read_bytes()
    (there / "CONTENTS").write_bytes(b"?" + whole[1:])
    async with viewer(f"file://{there}") as client:
        answer = await client.get("api/run")
        assert (answer.status_code, answer.json()["error"]["type"]) == (503, "DamagedLog")
        assert "CONTENTS at file://" in answer.json()["error"]["message"]
        (there / "CONTENTS").write_bytes(whole)
        assert (await got(client, "api/run"))["run"]["rollouts"] == 2


async def test_a_store_that_refuses_for_a_while_is_told_and_is_asked_again(s3: S3Server, sealed: Path) -> None:
    uri = s3.uri(f"{BUCKET}/refused", credentials="an-id:very-secret@")
    carry_sealed(sealed, uri)
    async with viewer(uri) as client:
        opened = await got(client, "api/rollouts?text=nothing")  # the index alone
        s3.denying = True
        try:
            answer = await client.get("api/rollouts/7-0/calls/0")
        finally:
            s3.denying = False
        assert (answer.status_code, answer.json()["error"]["type"]) == (503, "RemoteUnavailable")
        assert "the credentials" in answer.json()["error"]["message"]
        assert "very-secret" not in answer.text
        assert "very-secret" not in json.dumps(opened)
        found = await got(client, "api/rollouts/7-0/calls/0")
        assert (found["payloads"] is not None, found["about"]) == (True, opened["about"])


async def test_a_store_that_cannot_be_reached_is_told(s3: S3Server) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    async with viewer(f"s3://{BUCKET}/x?scheme=http&endpoint_override=127.0.0.1:{port}&region=us-east-1") as client:
        answer = await client.get("api/rollouts")
    assert (answer.status_code, answer.json()["error"]["type"]) == (503, "RemoteUnavailable")
    assert "check the URI" in answer.json()["error"]["message"]


def test_the_command_takes_the_uri_and_shows_no_password(
    monkeypatch: pytest.MonkeyPatch, s3: S3Server, sealed: Path
) -> None:
    uri = s3.uri(f"{BUCKET}/commanded", credentials="an-id:very-secret@")
    carry_sealed(sealed, uri)
    served: list[Any] = []

    async def serve(place: Any, port: int, on_ready: Any) -> None:
        served.append(place)
        on_ready("http://127.0.0.1:1/token/")

    monkeypatch.setattr("gym_capture.viewer.server.serve", serve)
    ran = CliRunner().invoke(app, ["view", uri, "--no-browser", "--json"])
    assert (ran.exit_code, served) == (0, [uri])
    assert json.loads(ran.stdout)["directory"] == uri.replace("very-secret", "***")
    missing = CliRunner().invoke(app, ["view", s3.uri(f"{BUCKET}/nothing"), "--no-browser"])
    assert (missing.exit_code, len(served)) == (1, 1)
    assert "no sealed run lies at" in missing.stderr
