"""Sealed runs carried elsewhere: whole or not at all for readers, wherever it is killed, and nothing replaced."""

from __future__ import annotations

import base64
import errno
import json
import random
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from typer.testing import CliRunner, Result

from gym_capture.cli.main import app
from gym_capture.directory import carrying
from gym_capture.directory.carrying import carry_sealed, seal_and_carry
from gym_capture.directory.sealing import seal_at_rest
from gym_capture.errors import (
    CaptureDirectoryError,
    ConfigError,
    DamagedLog,
    FormatError,
    GymCaptureError,
    RemoteUnavailable,
    RunSealed,
    TargetTaken,
)
from gym_capture.model.shards import shard_of
from gym_capture.storage import names
from gym_capture.storage.posix_files import PosixFiles
from gym_capture.storage.remote.contents import decode_contents, encode_contents
from gym_capture.storage.remote.remote_files import BLOCK_BYTES, RemoteFiles
from gym_capture.storage.remote.run_uri import shown
from gym_capture.storage.run_layout import create_or_adopt_shards
from gym_capture.storage.run_marker import marker_content
from gym_capture.storage.sealed.manifest import SealedFile
from gym_capture.storage.sealed.reader import SealedReader
from gym_capture.storage.store import CaptureStore
from gym_capture.tables import open_tables
from tests.reading.calls import chat, user, written
from tests.storage.captured_rollouts import HOSTILE
from tests.storage.owners import Batch, Owner, exchange
from tests.storage.s3_server import BUCKET, S3Server, s3_server

FILES = ["CONTENTS", "RUN", "SEALED", "sealed-00000002/manifest.json"]
FILES += [f"sealed-00000002/part-00000001.{kind}.parquet" for kind in ("calls", "rollouts")]


class Killed(BaseException):
    """The process ends here."""


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


def captured(directory: Path) -> Path:
    """A run of a few rollouts, at rest."""
    hostile = [{"dialect": "chat", "model_call_id": f"call-{n}", **each} for n, each in enumerate(HOSTILE)]
    first = [chat("a", [user("one")]), chat("b", [user("one"), user("two")], at=2.0)]
    written(directory, {"first": first, "second": [chat("c", [user("three")], at=4.0)], "third": hostile})
    return directory


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run that is not sealed yet."""
    return captured(tmp_path / "run")


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One that is; it is only read."""
    directory = captured(tmp_path_factory.mktemp("sealed") / "run")
    seal_at_rest(directory)
    return directory


def file_uri(path: Path) -> str:
    return f"file://{path}"


def told(store: CaptureStore) -> Any:
    return [
        (each, store.captured(each)._replace(calls=list(store.captured(each).calls)), store.evidence(each))
        for each in store.rollout_ids()
    ], store.standings()


def objects(s3: S3Server, path: str) -> dict[str, bytes]:
    """Everything under a path of the bucket."""
    from pyarrow import fs

    found = s3.reached().get_file_info(fs.FileSelector(f"{BUCKET}/{path}", recursive=True, allow_not_found=True))
    return {
        each.path.removeprefix(f"{BUCKET}/{path}/"): s3.reached().open_input_stream(each.path).read()
        for each in found
        if each.type == fs.FileType.File
    }


def replace_object(s3: S3Server, path: str, data: bytes) -> None:
    with s3.reached().open_output_stream(f"{BUCKET}/{path}") as stream:
        stream.write(data)


def absent(uri: str) -> bool:
    """Whether a reader finds no run, as it must until all of it is there."""
    try:
        CaptureStore(uri)
    except RemoteUnavailable as error:
        return "no sealed run lies at" in str(error)
    return False


def test_a_run_is_sealed_carried_and_read_there_as_in_its_directory(s3: S3Server, run: Path) -> None:
    expected = told(CaptureStore(run))
    uri = s3.uri(f"{BUCKET}/a/trip")
    reports, carried = seal_and_carry(run, uri)
    assert reports[""].calls == sum(len(each[1].calls) for each in expected[0])
    assert (carried.files, carried.sent, carried.beside) == (len(FILES), len(FILES), 0)
    there = objects(s3, "a/trip")
    assert sorted(there) == FILES
    for name in FILES:
        if name.startswith("sealed-") or name == names.RUN:
            assert there[name] == (run / name).read_bytes()
    assert (carried.size, carried.sent_bytes) == (sum(map(len, there.values())),) * 2
    store = CaptureStore(uri)
    assert told(store) == expected == told(CaptureStore(run))
    store.refresh()
    assert store.verify().sound
    assert store.read_bytes("third", 1, "request") == HOSTILE[1]["request"]
    assert open_tables(uri).table("calls").equals(open_tables(run).table("calls"))
    # Again: all is there, and nothing is sent.
    again = seal_and_carry(run, uri)[1]
    assert (again.files, again.sent, again.sent_bytes) == (len(FILES), 0, 0)
    assert objects(s3, "a/trip") == there


def test_a_run_of_several_shards_is_carried_and_read_as_one(s3: S3Server, tmp_path: Path) -> None:
    directory = tmp_path / "run"
    directory.mkdir(mode=0o700)
    create_or_adopt_shards(str(directory), 2)
    ids = [f"r-{number}" for number in range(6)]
    for shard in range(2):
        owner = Owner(PosixFiles(directory / names.shard_folder(shard)))
        batch = Batch()
        for rollout in ids:
            if shard_of(rollout, 2) == shard:
                batch.commit(rollout, exchange(rollout))
        owner.send(batch, 1)
        owner.stop()
    expected = told(CaptureStore(directory))
    uri = s3.uri(f"{BUCKET}/shards")
    assert seal_and_carry(directory, uri)[1].files == 12
    store = CaptureStore(uri)
    assert (store.rollout_ids(), told(store)) == (ids, expected)
    assert {key: report.sound for key, report in store.verify_shards().items()} == {
        "": True,
        "shard-000/": True,
        "shard-001/": True,
    }
    # What was copied back is a directory like any other.
    for name, data in objects(s3, "shards").items():
        (tmp_path / "copy" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "copy" / name).write_bytes(data)
    assert told(CaptureStore(tmp_path / "copy")) == expected


def test_killed_between_any_two_steps_readers_see_all_or_nothing_and_it_goes_on(sealed: Path, tmp_path: Path) -> None:
    expected = told(CaptureStore(sealed))
    points: list[str] = []
    whole = tmp_path / "whole"
    carry_sealed(sealed, file_uri(whole), hook=points.append)
    assert points == ["before remote-file", "after remote-file"] * (len(FILES) - 1) + [
        "before remote-contents",
        "after remote-contents",
    ]
    for last in range(len(points)):
        target = tmp_path / f"target-{last}"
        reached: list[str] = []

        def hook(point: str, reached: list[str] = reached, last: int = last) -> None:
            reached.append(point)
            if len(reached) > last:
                raise Killed

        with pytest.raises(Killed):
            carry_sealed(sealed, file_uri(target), hook=hook)
        if last == len(points) - 1:
            assert told(CaptureStore(file_uri(target))) == expected
        else:
            assert absent(file_uri(target))
            if (target / names.RUN).exists():  # for who reads the folder as a directory
                assert told(CaptureStore(target)) == expected
        report = carry_sealed(sealed, file_uri(target))
        assert report.sent == len(FILES) - (last + 1) // 2
        assert told(CaptureStore(file_uri(target))) == expected == told(CaptureStore(target))
        left = [path for path in sorted(target.rglob("*")) if path.is_file()]
        assert [str(path.relative_to(target)) for path in left] == FILES
        assert {path.stat().st_mode & 0o777 for path in left} == {0o600}


def test_on_a_store_each_attempt_goes_on_where_the_last_was_killed(s3: S3Server, sealed: Path) -> None:
    uri = s3.uri(f"{BUCKET}/killed")

    for kill_at, there in (("after remote-file", 1), ("before remote-contents", len(FILES) - 1)):

        def hook(point: str, kill_at: str = kill_at) -> None:
            if point == kill_at:
                raise Killed

        with pytest.raises(Killed):
            carry_sealed(sealed, uri, hook=hook)
        assert len(objects(s3, "killed")) == there
        assert absent(uri)
    assert carry_sealed(sealed, uri).sent == 1
    assert told(CaptureStore(uri)) == told(CaptureStore(sealed))


@pytest.mark.parametrize("place", ["s3", "file"])
def test_what_was_sent_halfway_is_not_left_there(
    s3: S3Server, sealed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    uri = s3.uri(f"{BUCKET}/halfway") if place == "s3" else file_uri(tmp_path / "there")

    def cut(files: Any, file: Any) -> Iterator[bytes]:
        yield files.read_at(file.name, 0, 100)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(carrying, "_read_through", cut)
        with pytest.raises(KeyboardInterrupt):
            carry_sealed(sealed, uri)
    assert place == "file" or not objects(s3, "halfway")
    assert not [path for path in (tmp_path / "there").rglob("*") if path.is_file()]
    # Killed outright, a file system that renames keeps what was begun; it goes with the next attempt.
    if place == "file":
        begun = tmp_path / "there" / "sealed-00000002" / ".manifest.json.0123abcd.tmp"
        begun.write_bytes(b"{")
    assert carry_sealed(sealed, uri).sent == len(FILES)
    assert told(CaptureStore(uri)) == told(CaptureStore(sealed))
    assert not list(tmp_path.rglob("*.tmp"))


def test_a_file_that_does_not_come_back_as_it_was_sent_is_removed_and_told(
    s3: S3Server, sealed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = s3.uri(f"{BUCKET}/lossy")
    with monkeypatch.context() as patch:
        patch.setattr(carrying, "_read_through", lambda files, file: iter([files.read_at(file.name, 0, 100)]))
        with pytest.raises(RemoteUnavailable, match="did not come back"):
            carry_sealed(sealed, uri)
    assert objects(s3, "lossy") == {}
    assert carry_sealed(sealed, uri).sent == len(FILES)


def test_what_lies_there_already_is_never_replaced(s3: S3Server, sealed: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(sealed, other)
    (other / names.RUN).write_bytes(marker_content(uuid.UUID(hex="ab" * 16)))
    uri = s3.uri(f"{BUCKET}/taken")
    carry_sealed(other, uri)
    there = objects(s3, "taken")
    with pytest.raises(TargetTaken, match=f"run {'ab' * 16}.*empty or not there yet.* and run the same command again"):
        carry_sealed(sealed, uri)
    # Before anything is sealed, too; and without CONTENTS what is there tells it.
    unsealed = tmp_path / "unsealed"
    written(unsealed, {"first": [chat("a", [user("one")])]})
    with pytest.raises(TargetTaken, match="nothing of this run"):
        seal_and_carry(unsealed, uri)
    assert not (unsealed / names.SEALED).exists()
    s3.reached().delete_file(f"{BUCKET}/taken/CONTENTS")
    with pytest.raises(
        TargetTaken, match=r"RUN has (other bytes|7\d bytes there).*remove RUN there and run the same command again"
    ):
        carry_sealed(sealed, uri)
    replace_object(s3, "taken/notes.txt", b"mine")
    with pytest.raises(TargetTaken, match=r"notes\.txt is not of this run"):
        carry_sealed(other, uri)
    del there["CONTENTS"]
    assert objects(s3, "taken") == {**there, "notes.txt": b"mine"}
    # A live directory's own temporary files are none of ours.
    local = tmp_path / "live"
    local.mkdir()
    (local / ".OWNER.0123abcd.tmp").write_bytes(b"{}")
    with pytest.raises(TargetTaken, match="OWNER"):
        carry_sealed(sealed, file_uri(local))
    assert [each.name for each in local.iterdir()] == [".OWNER.0123abcd.tmp"]
    with pytest.raises(TargetTaken, match="the run itself"):
        carry_sealed(sealed, file_uri(sealed))


def files_under(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.mark.parametrize("inside", ["", "archive", "sealed-00000009", "quarantine/deep", "../link/archive"])
def test_a_run_is_not_carried_into_a_runs_directory(sealed: Path, run: Path, tmp_path: Path, inside: str) -> None:
    (tmp_path / "link").symlink_to(run)
    before = files_under(run)
    with pytest.raises(TargetTaken, match="lies in the directory of the run itself"):
        seal_and_carry(run, file_uri(run / inside))
    if inside:
        with pytest.raises(TargetTaken, match=f"lies in the directory of a run, {run}"):
            carry_sealed(sealed, file_uri(run / inside))
    assert files_under(run) == before


def test_a_copy_is_not_taken_for_a_copy_of_itself(sealed: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    carry_sealed(sealed, file_uri(copy))
    assert CaptureStore(copy).verify().sound
    with pytest.raises(TargetTaken, match="the run itself"):
        carry_sealed(copy, file_uri(copy))
    assert carry_sealed(copy, file_uri(tmp_path / "again")).sent == len(FILES)


def test_of_two_runs_that_are_carried_to_one_folder_at_once_one_is_there_and_the_other_is_told(
    sealed: Path, run: Path, tmp_path: Path
) -> None:
    seal_at_rest(run)
    target = tmp_path / "there"

    def other_is_quicker(point: str) -> None:
        if not target.exists():
            carry_sealed(run, file_uri(target))

    with pytest.raises(RemoteUnavailable, match=r"cannot be written .*File exists"):
        carry_sealed(sealed, file_uri(target), hook=other_is_quicker)
    assert told(CaptureStore(file_uri(target))) == told(CaptureStore(run))
    assert sorted(files_under(target)) == FILES
    with pytest.raises(TargetTaken):
        carry_sealed(sealed, file_uri(target))


def test_where_nothing_can_be_linked_files_are_renamed(
    sealed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(source: str, target: str) -> None:
        raise PermissionError(errno.EPERM, "no links here")

    monkeypatch.setattr("os.link", no_links)
    carry_sealed(sealed, file_uri(tmp_path / "there"))
    assert sorted(files_under(tmp_path / "there")) == FILES


def test_a_place_that_vanishes_is_told_as_one_that_cannot_be_written(sealed: Path) -> None:
    with pytest.raises(RemoteUnavailable, match="cannot be written"):
        carry_sealed(sealed, "file:///proc/nothing/can/be/made")


def test_folders_that_were_made_are_synced_with_those_they_lie_in(
    sealed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    monkeypatch.setattr("gym_capture.storage.remote.remote_folder._sync", synced.append)
    carry_sealed(sealed, file_uri(tmp_path / "a" / "b"))
    assert {str(tmp_path), str(tmp_path / "a"), str(tmp_path / "a" / "b")} <= set(synced)


def assert_damage_shows(uri: str, name: str) -> None:
    """A rollout lacks its calls, or is marked where these are read without its index; the file is named."""
    store = CaptureStore(uri)
    found, damaged = store.read_available("first")
    calls_lost = ".calls." in name
    assert (len(found), damaged) == ((0, 2) if calls_lost else (2, 0))
    assert store.standing("first").reasons == (None if calls_lost else {"damaged": 1})
    assert [*store.report.call_files, *(each.file for each in store.report.indexes)] == [name]


@pytest.mark.parametrize("kind", ["calls", "rollouts"])
def test_a_truncated_object_is_noticed_by_readers_and_by_who_carries_again(
    s3: S3Server, sealed: Path, kind: str
) -> None:
    name = f"sealed-00000002/part-00000001.{kind}.parquet"
    uri = s3.uri(f"{BUCKET}/cut-{kind}")
    carry_sealed(sealed, uri)
    replace_object(s3, f"cut-{kind}/{name}", (sealed / name).read_bytes()[:-50])
    assert [each.file for each in CaptureStore(uri).verify().files] == [name]
    assert_damage_shows(uri, name)
    with pytest.raises(TargetTaken, match=f"{kind}.parquet has .* bytes there"):
        carry_sealed(sealed, uri)
    s3.reached().delete_file(f"{BUCKET}/cut-{kind}/{name}")
    assert_damage_shows(uri, name)
    assert carry_sealed(sealed, uri).sent == 1
    assert CaptureStore(uri).verify().sound


@pytest.mark.parametrize("name", ["RUN", "SEALED", "sealed-00000002/manifest.json", "CONTENTS"])
def test_damaged_small_files_are_noticed(sealed: Path, tmp_path: Path, name: str) -> None:
    target = tmp_path / "there"
    carry_sealed(sealed, file_uri(target))
    whole = (target / name).read_bytes()
    (target / name).write_bytes(whole[:-20] + b"}" * 20)
    with pytest.raises(DamagedLog, match=name):
        CaptureStore(file_uri(target)).verify()
    for command in ("check", "verify"):
        assert CliRunner().invoke(app, [command, file_uri(target)]).exit_code == 4
    assert CliRunner().invoke(app, ["ls", file_uri(target)]).exit_code == 1


def test_no_flipped_byte_of_a_contents_passes(sealed: Path, tmp_path: Path) -> None:
    target = tmp_path / "there"
    carry_sealed(sealed, file_uri(target))
    whole = (target / "CONTENTS").read_bytes()
    said = decode_contents(whole, "there")
    for at in range(len(whole)):
        flipped = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
        try:
            assert decode_contents(flipped, "there") == said, at  # a blank, say
        except (DamagedLog, FormatError):
            pass


def test_a_contents_that_names_files_outside_is_refused() -> None:
    for name in ("../RUN", "/etc/passwd", "sealed-00000001/../RUN", "sealed-00000001/notes", "shard-000/shard-001/RUN"):
        data = encode_contents("ab", (SealedFile(name, 1, 1),))
        with pytest.raises(DamagedLog, match="names"):
            decode_contents(data, "there")


def test_one_rollout_is_read_there_without_the_others(s3: S3Server, tmp_path: Path) -> None:
    directory = tmp_path / "run"
    noise = random.Random(7)
    rollouts = {
        f"r-{n}": [chat(f"call-{n}", [user(base64.b64encode(noise.randbytes(1_600_000)).decode())])] for n in range(6)
    }
    written(directory, rollouts)
    uri = s3.uri(f"{BUCKET}/ranges")
    carried = seal_and_carry(directory, uri)[1]
    [part] = SealedReader(PosixFiles(directory).folder("sealed-00000002")).manifest.parts
    assert part.calls.size > 20 * BLOCK_BYTES
    before, asked = s3.read_bytes, len(s3.requests)
    store = CaptureStore(uri)
    standings = store.standings()
    assert (len(standings), s3.read_bytes - before < carried.size // 20) == (6, True)
    assert store.read("r-3")[0]["request"] == rollouts["r-3"][0]["request"]
    assert s3.read_bytes - before < carried.size * 6 // 10
    # Each small read of pyarrow's is no request of its own.
    assert len(s3.requests) - asked < 40


def test_nothing_is_written_to_a_run_that_lies_elsewhere(sealed: Path, tmp_path: Path) -> None:
    carry_sealed(sealed, file_uri(tmp_path / "there"))
    files = RemoteFiles(file_uri(tmp_path / "there"))
    for write in (
        lambda: files.create("RUN", b"", ""),
        lambda: files.replace("RUN", b"", ""),
        lambda: files.overwrite("beat", b"", ""),
        lambda: files.create_append("segment", ""),
        lambda: files.remove("RUN"),
    ):
        with pytest.raises(RunSealed, match="nothing is written there"):
            write()
    with pytest.raises(CaptureDirectoryError, match="no folder"):
        files.folder("shard-000")
    with pytest.raises(FileNotFoundError):
        files.read_at("../run/RUN", 0, 10)


def test_missing_credentials_and_buckets_are_told_with_what_to_do(
    s3: S3Server, sealed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for use in (lambda uri: carry_sealed(sealed, uri), CaptureStore):
        with pytest.raises(RemoteUnavailable, match=r"there is no bucket nowhere .* make the bucket first"):
            use(s3.uri("nowhere/runs/7"))
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    for use in (lambda uri: carry_sealed(sealed, uri), CaptureStore):
        with pytest.raises(RemoteUnavailable, match=r"ACCESS_DENIED.*AWS_ACCESS_KEY_ID"):
            use(s3.uri(f"{BUCKET}/denied"))
    assert absent(s3.uri(f"{BUCKET}/denied", credentials="an-id:a-secret@"))


HOSTILE_URIS = [
    "s3://",
    "s3:///x",
    "http://a/b",
    "file://relative/x",
    "s3://b?bad=1",
    "s3://b/a b",
    "s3://b/a\0b",
    "s3://b/\udcff",
    "S3://b/x",
    "nope://\x1b[31m",
    "file:///",
    "s3://KEY:very-secret@b c/x",
    "s3://KEY:very/secret@b c/x",
    "s3://KEY:very?secret@b/x",
    "s3://KEY:very#secret@b/x",
    "abfs://c@a/x?client_secret=very-secret&x= ",
    "abfs://c@a/x?sas=very#secret",
    "file:///proc/runs#7",
    "file:///proc/runs?7",
    "s3://bucket/runs#7",
    "mock://archive/runs/7",
    "file:/proc/runs/7",
    "/proc/runs/7",
]


@pytest.mark.parametrize("uri", HOSTILE_URIS)
def test_a_uri_that_cannot_work_is_a_clear_error_without_its_secrets(uri: str, sealed: Path) -> None:
    for use in (lambda uri: carry_sealed(sealed, uri), RemoteFiles):
        with pytest.raises(GymCaptureError, match="Nothing was read or written") as raised:
            use(uri)
        assert isinstance(raised.value, ConfigError)
        assert "very" not in str(raised.value)


@pytest.mark.parametrize("name", ["a b", "a\u00fc", "a\tb"])
def test_a_uri_with_what_is_to_be_escaped_says_how(name: str, sealed: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"a space is written as %20"):
        carry_sealed(sealed, file_uri(tmp_path / name))
    carry_sealed(sealed, file_uri(tmp_path / quote(name)))
    assert CaptureStore(file_uri(tmp_path / quote(name))).rollout_ids() == ["first", "second", "third"]
    assert (tmp_path / name / names.CONTENTS).exists()


def test_a_uri_is_shown_without_its_secrets() -> None:
    assert shown("s3://KEY:a%2Fb@bucket/x?region=r") == "s3://KEY:***@bucket/x?region=r"
    assert shown("abfs://c@a/x?client_secret=1&tenant_id=2") == "abfs://c@a/x?client_secret=***&tenant_id=2"
    assert shown("s3://bucket/x") == "s3://bucket/x"
    inner = "s3://bucket/x?endpoint_override=http://me:{}@host:9000&json_credentials={}&session={}&region=r"
    assert shown(inner.format("a", "b", "c")) == inner.format("***", "***", "***")
    assert (
        shown("s3://bucket/x?endpoint_override=http://host:9000") == "s3://bucket/x?endpoint_override=http://host:9000"
    )


# -- the command line -------------------------------------------------------------------------------------------


def ran(*words: Any, code: int = 0) -> Result:
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == code, result.output
    return result


LOOKS: list[list[str]] = [
    ["ls", "PLACE"],
    ["show", "PLACE", "first"],
    ["show", "--dir", "PLACE", "first"],
    ["stats", "PLACE"],
    ["diff", "PLACE", "first", "second"],
    ["check", "PLACE"],
    ["verify", "PLACE"],
    ["sql", "select rollout_id, count(*) n from calls group by 1 order by 1", "PLACE"],
]


def test_commands_that_read_take_the_uri(s3: S3Server, run: Path, tmp_path: Path) -> None:
    written_to = s3.uri(f"{BUCKET}/command")
    report = json.loads(ran("seal", run, "--to", written_to, "--json").stdout)
    assert (report["carried"]["to"], report["carried"]["sent"], report["rollouts"]) == (written_to, len(FILES), 3)
    assert "carried" in ran("seal", run, "--to", written_to).stdout

    def looked(words: list[str], place: str) -> Any:
        found = json.loads(ran(*(place if word == "PLACE" else word for word in words), "--json").stdout)
        return {key: value for key, value in found.items() if key != "directory"}

    for words in LOOKS:
        assert looked(words, written_to) == looked(words, str(run))
    ran("export", written_to, "--to", tmp_path / "out", "--format", "nemo-gym")
    ran("import", written_to, tmp_path / "again")
    assert told(CaptureStore(tmp_path / "again"))[0] == told(CaptureStore(run))[0]
    assert "two directories" in ran("ls", written_to, "--dir", run, code=2).stderr
    missing = ran("ls", s3.uri(f"{BUCKET}/nothing"), code=1).stderr
    assert "no sealed run lies at" in missing


@pytest.mark.parametrize(
    "words",
    [
        ["tail", "URI"],
        ["status", "URI"],
        ["stop", "--dir", "URI"],
        ["seal", "URI"],
        ["prune", "URI", "--older-than", "1d"],
        ["verify", "URI", "--repair"],
        ["import", "URI", "URI"],
    ],
    ids=lambda words: words[0],
)
def test_commands_that_need_a_directory_say_so(words: list[str]) -> None:
    told = ran(*("s3://an-id:very-secret@bucket/runs/7" if word == "URI" else word for word in words), code=2)
    assert told.stderr.startswith(
        "error: s3://an-id:***@bucket/runs/7 is a URI, and this command needs a run's directory"
    )
    of_a_path = ran(*("file:///archive/runs/7" if word == "URI" else word for word in words), code=2)
    assert of_a_path.stderr.startswith("error: file:///archive/runs/7 is a URI")
