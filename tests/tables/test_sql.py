"""SQL over the tables: it answers, sees nothing else, and its ready questions run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gym_capture.cli.main import app
from gym_capture.errors import ConfigError
from gym_capture.storage.posix_files import PosixFiles
from gym_capture.tables import Tables, open_tables
from gym_capture.tables.questions import QUESTIONS, question
from gym_capture.tables.sql import ask
from tests.storage.captured_rollouts import rollout
from tests.storage.owners import Batch, Owner


def exchange(turn: int, cached: int, error: str | None = None) -> dict[str, object]:
    usage = {"prompt_tokens": 100, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": cached}}
    return {
        "request": {"model": "m", "messages": []},
        "response": None if error else {"usage": usage},
        "error_category": error,
        "latency_ms": 10.0 * turn,
    }


@pytest.fixture(scope="module")
def tables() -> Tables:
    first = rollout("a", [exchange(0, 0), exchange(1, 50), exchange(2, 0, "timeout")])
    second = rollout("b", [exchange(3, 0), exchange(4, 100)], reasons={"lost": 1}, indexes=3)
    return Tables(lambda _texts: iter([first, second]))


EXPECTED = {
    "slowest-calls": [
        ("b", 1, "m", 40.0, None, 100, 5, None),
        ("b", 0, "m", 30.0, None, 100, 5, None),
        ("a", 2, "m", 20.0, None, None, None, "timeout"),
        ("a", 1, "m", 10.0, None, 100, 5, None),
        ("a", 0, "m", 0.0, None, 100, 5, None),
    ],
    "tokens-by-model": [("m", 5, 400, 150, 20, None, 420)],
    "error-rates": [("timeout", 1, 20.0)],
    "cache-by-turn": [(0, 2, 0.0, 0.0), (1, 2, 100.0, 75.0)],
    "gaps": [
        ("b", 2, 1, 0, "lost=1", ["model_call_capture_records_unreadable", "model_call_capture_incomplete"]),
    ],
}


@pytest.mark.parametrize("name", [each.name for each in QUESTIONS])
def test_every_ready_question_has_its_answer(tables: Tables, name: str) -> None:
    found = question(name)
    assert found is not None
    assert ask(tables, found.sql).rows == EXPECTED[name]


def test_tables_are_joined_with_themselves_and_each_other(tables: Tables) -> None:
    query = """
        with late as (select * from calls where call_index > 0)
        select r.rollout_id, count(*) as n from late join rollouts r using (rollout_id) join calls c using (rollout_id)
        group by 1 order by 1
    """
    answer = ask(tables, query)
    assert (list(answer.columns), answer.rows) == (["rollout_id", "n"], [("a", 6), ("b", 2)])


@pytest.mark.parametrize(
    "query",
    [
        "select * from read_csv('{file}')",
        "select * from '{file}'",
        "select * from read_text('{file}')",
        "select * from glob('{folder}/*')",
        "select * from read_parquet('http://127.0.0.1:9/x')",
        "copy (select 1) to '{folder}/out.csv'",
        "attach '{folder}/x.db'",
        "install httpfs",
        "load httpfs",
        "set enable_external_access = true",
        "select 1; select 2",
        "create table t as select 1",
        "drop table calls",
        "pragma database_list",
        "selec 1",
        "select * from nowhere",
        "",
    ],
)
def test_a_query_reaches_neither_files_nor_network_and_changes_nothing(
    tables: Tables, query: str, tmp_path: Path
) -> None:
    (tmp_path / "secret.csv").write_text("a,b\n1,2\n", encoding="utf-8")
    with pytest.raises(ConfigError):
        ask(tables, query.format(file=tmp_path / "secret.csv", folder=tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["secret.csv"]


def test_a_query_that_is_no_utf_8_is_refused(tables: Tables) -> None:
    with pytest.raises(ConfigError, match="not UTF-8"):
        ask(tables, "select '\udcff'")


def test_an_error_that_quotes_what_was_captured_steers_no_terminal(directory: Path) -> None:
    with pytest.raises(ConfigError, match=r"\\x1b\[2J\\u202e\[red\]x"):
        ask(open_tables(directory), "select error(model_call_id) from calls")


def test_names_of_this_process_are_no_tables(tables: Tables) -> None:
    secret = tables.table("calls")
    assert secret.num_rows == 5
    with pytest.raises(ConfigError, match="rollouts, calls, messages"):
        ask(tables, "select * from secret")


def test_only_the_tables_that_are_named_are_read() -> None:
    asked: list[bool] = []

    def rollouts(texts: bool) -> object:
        asked.append(texts)
        return iter([])

    ask(Tables(rollouts), "select count(*) from calls")  # type: ignore[arg-type]
    assert asked == [False]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("captures")
    given = {**exchange(1, 0), "dialect": "chat", "model_call_id": "\x1b[2J\u202e[red]x"}
    Owner(PosixFiles(folder)).send(Batch().commit("r", given), 1)
    return folder


def test_the_command_prints_a_table_that_no_text_breaks(directory: Path) -> None:
    ran = CliRunner().invoke(
        app, ["sql", "select model_call_id, tokens_in, latency_ttft_ms from calls", str(directory)]
    )
    assert ran.exit_code == 0
    assert "\\x1b[2J\\u202e[red]x" in ran.stdout
    assert "\x1b[2J" not in ran.stdout
    assert "1 row" in ran.stdout


def test_the_command_writes_json(directory: Path) -> None:
    query = "select rollout_id, tokens_in, latency_ttft_ms from calls"
    ran = CliRunner().invoke(app, ["sql", query, str(directory), "--json"])
    assert json.loads(ran.stdout) == {
        "columns": ["rollout_id", "tokens_in", "latency_ttft_ms"],
        "rows": [["r", 100, None]],
    }


def test_the_command_writes_numbers_that_json_lacks_as_null(directory: Path) -> None:
    query = "select 'nan'::double, ['inf'::double, 1.5], map([date '2020-01-02'], ['-inf'::double])"
    ran = CliRunner().invoke(app, ["sql", query, str(directory), "--json"])
    assert ran.exit_code == 0, ran.output
    found = json.loads(ran.stdout, parse_constant=pytest.fail)
    assert found["rows"] == [[None, [None, 1.5], {"2020-01-02": None}]]


def test_the_command_takes_its_directory_as_an_option_or_from_the_environment(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rows(*words: str | Path) -> object:
        ran = CliRunner().invoke(app, ["sql", *map(str, words), "--json"])
        assert ran.exit_code == 0, ran.output
        return json.loads(ran.stdout)["rows"]

    query, ready = "select count(*) from calls", ("--question", "gaps")
    assert rows(query, "--dir", directory) == rows(query, directory) == [[1]]
    assert rows(*ready, "--dir", directory) == []
    monkeypatch.setenv("GYM_CAPTURE_DIR", str(directory))
    assert (rows(query), rows(*ready)) == ([[1]], [])
    both = CliRunner().invoke(app, ["sql", query, str(directory), "--dir", "elsewhere"])
    assert (both.exit_code, "two directories are given" in both.stderr) == (2, True)


def test_the_command_asks_ready_questions_and_lists_them(directory: Path) -> None:
    ran = CliRunner().invoke(app, ["sql", "--question", "tokens-by-model", str(directory), "--json"])
    assert json.loads(ran.stdout)["rows"] == [["m", 1, 100, 0, 5, None, 105]]
    listed = CliRunner().invoke(app, ["sql", "--list"])
    assert all(each.name in listed.stdout and each.sql.strip() in listed.stdout for each in QUESTIONS)
    as_json = CliRunner().invoke(app, ["sql", "--list", "--json"])
    assert [each["name"] for each in json.loads(as_json.stdout)] == [each.name for each in QUESTIONS]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["sql"], "QUERY and DIR"),
        (["sql", "--dir", "{directory}"], "which query?"),
        (["sql", "select 1"], "which directory?"),
        (["sql", "--question", "gaps"], "which directory?"),
        (["sql", "--question", "gaps", "select 1", "{directory}"], "needed: DIR"),
        (["sql", "--question", "nothing", "."], "slowest-calls, tokens-by-model"),
        (["sql", "selec", "{directory}"], "rollouts, calls, messages"),
    ],
)
def test_a_wrong_command_says_what_is_right(directory: Path, arguments: list[str], said: str) -> None:
    ran = CliRunner().invoke(app, [each.format(directory=directory) for each in arguments])
    assert ran.exit_code == 2
    assert said in " ".join(ran.stderr.split())


def test_the_hostile_id_is_in_the_table_as_it_was(directory: Path) -> None:
    assert ask(open_tables(directory), "select model_call_id from calls").rows == [("\x1b[2J\u202e[red]x",)]
