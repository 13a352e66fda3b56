"""`CaptureStore` reads a run's shards as one; `verify` and its repair say which shard they speak of."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from gym_capture.cli.verification import repaired, verification
from gym_capture.client.client import CaptureClient
from gym_capture.client.sharded_host import host_over
from gym_capture.directory.locate import Liveness, liveness, owner_of
from gym_capture.directory.resting import clear_at_rest
from gym_capture.errors import CaptureDirectoryError
from gym_capture.model.codec import FORMAT_VERSION
from gym_capture.model.shards import shard_of
from gym_capture.storage.posix_files import PosixFiles
from gym_capture.storage.run_marker import RunMarker, encode_marker, read_marker
from gym_capture.storage.store import CaptureStore
from gym_capture.testing.conformance import some_exchange
from gym_capture.testing.threaded_shards import ThreadedShards

SHARDS = 3
ROLLOUTS = [next(f"r{number}" for number in range(99) if shard_of(f"r{number}", SHARDS) == shard) for shard in range(3)]
"""One rollout of each shard."""


@pytest.fixture
def directory(tmp_path: Path) -> str:
    """A run at rest: rollout N has N + 1 exchanges; a claim of the last one is lost with its client."""
    owners = ThreadedShards(tmp_path / "run", SHARDS)
    owners.start()
    client = CaptureClient(host_over(owners.in_process_transports()))
    with client.sync as capture:
        for turn, rollout_id in enumerate(ROLLOUTS):
            for call in range(turn + 1):
                capture.record(rollout_id, some_exchange(f"c{call}"))
        held = capture.rollout(ROLLOUTS[2]).claim(dialect="chat")
        held.__enter__()
        store = CaptureStore(tmp_path / "run")
        assert (store.outstanding(), store.outstanding(ROLLOUTS[2]), store.outstanding(ROLLOUTS[0])) == (1, 1, 0)
        assert [claim.rollout_id for claim in store.open_claims()] == [ROLLOUTS[2]]
        assert store.open_claims() == store.open_claims(ROLLOUTS[2])
        held.release()
        held.__exit__(None, None, None)
        store.refresh()
        assert store.outstanding() == 0
        capture.stop()
    owners.close()
    return str(tmp_path / "run")


def test_all_shards_are_read_as_one(directory: str) -> None:
    store = CaptureStore(directory)
    assert store.rollout_ids() == sorted(ROLLOUTS)
    assert [len(store.read(rollout_id)) for rollout_id in ROLLOUTS] == [1, 2, 3]
    assert [store.is_incomplete(rollout_id) for rollout_id in ROLLOUTS] == [False, False, True]
    assert [len(store.evidence(rollout_id).records) for rollout_id in ROLLOUTS] == [1, 2, 3]
    assert store.read_bytes(ROLLOUTS[1], 1, "response").startswith(b'{"id":"c1"')
    assert [store.knows(rollout_id) for rollout_id in (ROLLOUTS[0], "nobody")] == [True, False]
    assert store.report.segments == 3
    standings = store.standings()
    assert [(each.rollout_id, each.calls) for each in standings] == sorted(zip(ROLLOUTS, (1, 2, 3), strict=True))
    assert standings == [store.standing(rollout_id) for rollout_id in sorted(ROLLOUTS)]
    assert [record.call_index for record in store.records(ROLLOUTS[2], 1)] == [1, 2]
    assert liveness(directory) is Liveness.AT_REST
    assert owner_of(directory) is None


def test_nemo_gyms_files_lie_in_the_runs_directory_and_count_once(directory: str) -> None:
    line = b'{"model_call_id": "n", "dialect": "chat", "request": {}, "response": {}}\n'
    for name in ("beside-1", "beside-2", ROLLOUTS[0]):
        Path(directory, f"{name}.capture.jsonl").write_bytes(line + b"damaged\n")
    store = CaptureStore(directory)
    assert store.rollout_ids() == sorted([*ROLLOUTS, "beside-1", "beside-2"])
    assert store.read_available("beside-1")[1] == 1
    assert len(store.read(ROLLOUTS[0])) == 1  # the log knows it
    assert store.verify().lines == {"beside-1": 1, "beside-2": 1}


def test_clearing_at_rest_reaches_every_shard(directory: str) -> None:
    clear_at_rest(directory, ROLLOUTS)
    store = CaptureStore(directory)
    assert store.rollout_ids() == []
    assert [store.generation(rollout_id) for rollout_id in ROLLOUTS] == [1, 1, 1]


def test_verify_names_the_shard_and_repair_mends_it(directory: str) -> None:
    (segment,) = [name for name in os.listdir(f"{directory}/shard-002") if name.startswith("segment")]
    path = Path(directory, "shard-002", segment)
    data = bytearray(path.read_bytes())
    data[60] ^= 1  # in the first frame's head
    path.write_bytes(data)
    Path(directory, "RUN").unlink()
    found = verification(CaptureStore(directory))
    assert not found["sound"]
    assert {each.get("segment") for each in found["damage"] if each["what"] == "bytes"} == {f"shard-002/{segment}"}
    assert [each["file"] for each in found["damage"] if each["what"] == "file"] == ["RUN"]
    mended = repaired(Path(directory))
    assert mended["segments"] == [f"shard-002/{segment}"]
    assert (mended["files"], mended["epoch"]) == (["RUN"], 2)
    assert mended["quarantined"] == [f"shard-002/quarantine/{segment}.0"]
    again = verification(CaptureStore(directory))
    assert [each for each in again["damage"] if each["what"] in ("bytes", "file")] == []
    assert {each["segment"] for each in again["quarantined"]} == {f"shard-002/{segment}"}
    assert repaired(Path(directory))["epoch"] is None


def test_a_shards_marker_of_another_run_is_restored_where_the_runs_and_its_log_agree(directory: str) -> None:
    path = Path(directory, "shard-001", "RUN")
    content = path.read_bytes()
    path.write_bytes(encode_marker(RunMarker("ab" * 16, FORMAT_VERSION, SHARDS, 1)))
    assert [each["file"] for each in verification(CaptureStore(directory))["damage"]] == ["shard-001/RUN"]
    assert repaired(Path(directory))["files"] == ["shard-001/RUN"]
    assert path.read_bytes() == content
    # Which shard it is only that file says: another one's is refused.
    path.write_bytes(encode_marker(msgspec.structs.replace(read_marker(PosixFiles(path.parent)), shard=2)))
    for read in (CaptureStore, repaired):
        with pytest.raises(CaptureDirectoryError, match="says that it is shard 2"):
            read(Path(directory))


def test_a_shards_lost_marker_is_restored_with_its_number(directory: str) -> None:
    path = Path(directory, "shard-001", "RUN")
    content = path.read_bytes()
    path.unlink()
    assert [each["file"] for each in verification(CaptureStore(directory))["damage"]] == ["shard-001/RUN"]
    assert repaired(Path(directory))["files"] == ["shard-001/RUN"]
    assert path.read_bytes() == content
    assert verification(CaptureStore(directory))["sound"]
