"""The three tables, of a capture directory in any state and of a sealed dataset, and what libraries make of them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from gym_capture.directory.sealing import seal_at_rest
from gym_capture.errors import CaptureDirectoryError, ConfigError
from gym_capture.storage.posix_files import PosixFiles
from gym_capture.storage.sealed.reader import SealedReader
from gym_capture.storage.sealed.writer import SealedWriter
from gym_capture.storage.store import CaptureStore
from gym_capture.tables import LEVELS, builders, open_tables
from gym_capture.tables.sql import ask
from tests.storage.captured_rollouts import HOSTILE, conversation
from tests.storage.owners import Batch, Owner, exchange


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A log with a conversation, exchanges that are hard to keep, an open claim and a loss; and NeMo Gym's files."""
    folder = tmp_path / "captures"
    folder.mkdir()
    owner = Owner(PosixFiles(folder))
    batch = Batch()
    for name, exchanges in (("a", conversation(3)), ("hostile", HOSTILE)):
        for number, each in enumerate(exchanges):
            batch.commit(name, {"dialect": "chat", "model_call_id": f"{name}-{number}", "started_at": number, **each})
    owner.send(batch.claim("open", 1).claim("a", 2).release("a", 2), 1)
    line = json.dumps(
        {"model_call_id": "n", "dialect": "chat", "request": {"messages": [{"role": "user", "content": "q"}]}}
    )
    (folder / "nemo.capture.jsonl").write_text(f"{line}\ntorn", encoding="utf-8")
    return folder


@pytest.fixture
def sealed(directory: Path, tmp_path: Path) -> Path:
    """The same, sealed."""
    folder = tmp_path / "sealed"
    folder.mkdir()
    store = CaptureStore(directory)
    writer = SealedWriter(PosixFiles(folder))
    for rollout_id in store.rollout_ids():
        writer.add(store.captured(rollout_id))
    writer.commit()
    return folder


def test_one_rollout_a_row(directory: Path) -> None:
    rows = open_tables(directory).table("rollouts").to_pylist()
    assert [(row["rollout_id"], row["calls"], row["failed_calls"], row["damaged_calls"]) for row in rows] == [
        ("a", 3, 0, 0),
        ("hostile", 6, 2, 0),
        ("nemo", 1, 0, 1),
        ("open", 0, 0, 0),
    ]
    a, _, nemo, open_one = rows
    assert (a["tokens_in"], a["tokens_out"], a["started_at"], a["models"]) == (30, 9, 0.0, ["m"])
    assert (a["incomplete"], a["gaps"]) == ("released=1", ["model_call_capture_incomplete"])
    assert nemo["gaps"] == ["model_call_capture_records_unreadable"]
    assert open_one["gaps"] == ["model_call_capture_no_records", "model_call_capture_pending"]


def test_a_rollout_that_was_begun_and_captured_nothing_is_a_row_before_and_after_sealing(tmp_path: Path) -> None:
    owner = Owner(PosixFiles(tmp_path))
    owner.send(Batch().commit("a", exchange("c")).clear("b", "retry"), 1)
    owner.merge("none", 2)
    owner.stop()
    asked = "select rollout_id, calls, incomplete, gaps from rollouts order by rollout_id"
    rows = [
        ("a", 1, None, []),
        ("b", 0, None, ["model_call_capture_no_records"]),
        ("none", 0, "unaccounted=2", ["model_call_capture_incomplete"]),
    ]
    assert ask(open_tables(tmp_path), asked).rows == rows
    seal_at_rest(tmp_path)
    assert ask(open_tables(tmp_path), asked).rows == rows


def test_one_call_a_row(directory: Path) -> None:
    rows = open_tables(directory).table("calls").to_pylist()
    assert [(row["rollout_id"], row["call_index"], row["tokens_in"]) for row in rows[:3]] == [
        ("a", 0, 0),
        ("a", 1, 10),
        ("a", 2, 20),
    ]
    assert len(rows) == 10
    [large] = [row for row in rows if row["model_call_id"] == "hostile-4"]
    assert large["status_code"] is None
    [judged] = [row for row in rows if row["verifier_invocation_id"]]
    assert judged["verifier_invocation_id"] == "v"


def test_one_message_a_row_each_once(directory: Path) -> None:
    rows = open_tables(directory).table("messages").to_pylist()
    told = [
        (row["call_index"], row["position"], row["source"], row["role"]) for row in rows if row["rollout_id"] == "a"
    ]
    assert told == [
        (0, 0, "request", "user"),
        (0, 1, "response", "assistant"),
        (1, 2, "request", "user"),
        (1, 3, "response", "assistant"),
        (2, 4, "request", "user"),
        (2, 5, "response", "assistant"),
    ]


@pytest.mark.parametrize("level", LEVELS)
def test_a_sealed_dataset_gives_the_same_tables(directory: Path, sealed: Path, level: str) -> None:
    assert open_tables(sealed).table(level).equals(open_tables(directory).table(level))


def test_the_columns_of_sealed_files_are_those_of_the_table_of_calls(directory: Path, sealed: Path) -> None:
    table = open_tables(directory).table("calls")
    files = pa.concat_tables(SealedReader(PosixFiles(sealed)).call_tables(table.column_names))
    assert files.equals(table)


@pytest.mark.parametrize("level", LEVELS)
def test_tables_are_streamed(directory: Path, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = open_tables(directory).table(level)
    monkeypatch.setattr(builders, "BATCH_ROWS", 2)
    batches = list(open_tables(directory).batches(level))
    assert max(batch.num_rows for batch in batches) == 2
    assert pa.Table.from_batches(batches).equals(whole)


def test_a_damaged_directory_gives_what_can_be_read(directory: Path) -> None:
    [segment] = directory.glob("segment-*.log")
    data = bytearray(segment.read_bytes())
    data[data.index(b"turn 0 ") + 20] ^= 1
    segment.write_bytes(data)
    tables = open_tables(directory)
    assert {row["call_index"] for row in tables.table("messages").to_pylist() if row["rollout_id"] == "a"} == {1, 2}
    assert tables.table("calls").num_rows == 10


def test_pandas_keeps_integers_that_may_be_unknown(directory: Path) -> None:
    frame = open_tables(directory).to_pandas("calls")
    assert frame.groupby("rollout_id")["tokens_in"].sum().to_dict() == {"a": 30, "hostile": 0, "nemo": 0}
    assert str(frame["tokens_in"].dtype) == "int64[pyarrow]"


def test_polars_takes_the_tables(directory: Path) -> None:
    import polars

    frame = open_tables(directory).to_polars("messages")
    roles = frame.filter(polars.col("rollout_id") == "a").group_by("role").len().sort("role")
    assert roles.rows() == [("assistant", 3), ("user", 3)]


def test_a_dataset_is_filtered(directory: Path) -> None:
    import pyarrow.compute as pc

    found = open_tables(directory).dataset("calls").to_table(filter=pc.field("tokens_in") > 5, columns=["call_index"])
    assert found.to_pylist() == [{"call_index": 1}, {"call_index": 2}]


def test_duckdb_reads_the_tables_and_the_sealed_files(directory: Path, sealed: Path) -> None:
    calls = open_tables(directory).table("calls")
    assert calls.num_rows == 10
    assert duckdb.execute("select sum(tokens_in) from calls").fetchall() == [(30,)]
    files = SealedReader(PosixFiles(sealed)).call_files
    query = "select decode(request)->>'$.model' from read_parquet($1) where call_index = 1 and rollout_id = 'a'"
    assert duckdb.execute(query, [files]).fetchall() == [("m",)]


LOAD = """
import sys, datasets
found = datasets.load_dataset("parquet", data_files=sys.argv[1:], split="train")
print(found.num_rows, found[1]["rollout_id"], found[1]["tokens_in"], found[1]["request"][:12])
"""


def test_hugging_faces_datasets_load_the_sealed_files_without_a_network(sealed: Path, tmp_path: Path) -> None:
    files = SealedReader(PosixFiles(sealed)).call_files
    environ = {**os.environ, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    ran = subprocess.run(
        [sys.executable, "-c", LOAD, *files], env=environ, capture_output=True, text=True, timeout=240, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == ["10", "a", "10", """b'{"model":"m"'"""]


def test_the_documents_snippets_run(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = (Path(__file__).resolve().parents[2] / "docs" / "tables.md").read_text(encoding="utf-8")
    space: dict[str, Any] = {}
    for found in re.finditer(r"^```python\n(.*?)^```", document, re.MULTILINE | re.DOTALL):
        exec(found[1], space)
    assert len(space["slow_calls"](str(directory))) == 0
    assert sorted(space["tokens_by_model"](str(directory)), key=str) == [("m", 30), (None, None)]
    assert space["late_calls"](str(directory))[0] == ("a", 2)
    assert capsys.readouterr().out.split()[0].isdigit()


def test_what_is_not_there_is_said(directory: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="rollouts, calls, messages"):
        open_tables(directory).batches("turns")
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(CaptureDirectoryError, match="is no capture directory"):
        open_tables(empty)


def test_reading_tables_loads_pyarrow_only_when_asked() -> None:
    code = "import sys, gym_capture.tables; print('pyarrow' in sys.modules, 'ray' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.split() == ["False", "False"]
