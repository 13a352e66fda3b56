"""A short cut of the lab: faults of each kind on a real cluster, and a broken owner that has to be caught."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.crash.lab.__main__ import again
from tests.crash.lab.broken_builds import caught, row
from tests.crash.lab.checker import LOST, Violation
from tests.crash.lab.faults import FAULTS
from tests.crash.lab.in_process import BROKEN, broken
from tests.crash.lab.plan import plan_of
from tests.crash.lab.run import Result
from tests.ray_cluster import ROOT

pytestmark = [pytest.mark.ray, pytest.mark.crash]

SHORT = ("kill owner and worker",)


def lab(tmp_path: Path, *args: str) -> tuple[int, list[dict[str, Any]], str]:
    """The command's exit status, its results, and what it printed. In a process of its own: it starts a cluster."""
    results = tmp_path / "results.json"
    done = subprocess.run(
        [sys.executable, "-m", "tests.crash.lab", "--json", str(results), *args],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # Ray tells every death there
        text=True,
        timeout=280,
    )
    return done.returncode, json.loads(results.read_text()), done.stdout


@pytest.mark.timeout(300)
def test_faults_on_a_real_cluster_lose_nothing_double_nothing_and_are_told_of_truly(tmp_path: Path) -> None:
    status, results, printed = lab(tmp_path, "--runs", str(len(SHORT)), "--seed", "11", "--faults", ",".join(SHORT))
    assert [each["violations"] for each in results] == [[]] * len(SHORT), printed
    assert [each["fault"] for each in results] == list(SHORT)
    assert all(each["acknowledged"] > 0 and each["recovered_s"] is not None for each in results)
    assert all(each["counts"]["owner messages"] > 0 for each in results)  # what is said again is stored once
    assert status == 0


@pytest.mark.skipif("GYM_CAPTURE_LAB" not in os.environ, reason="half a minute; set GYM_CAPTURE_LAB=1")
@pytest.mark.timeout(300)
def test_an_owner_that_skips_the_sync_is_caught_and_the_command_that_shows_it_again_is_printed(tmp_path: Path) -> None:
    fault = "host forgets at a step of a write"  # with this seed, right after an append
    status, (result,), printed = lab(
        tmp_path, "--runs", "1", "--seed", "6", "--faults", fault, "--broken", "sync skipped"
    )
    assert "acknowledged lost" in {kind for kind, _ in result["violations"]}
    assert f"--runs 1 --seed 6 --faults '{fault}' --broken 'sync skipped'" in printed
    assert status == 1


def test_a_seed_and_a_fault_are_a_plan() -> None:
    plans = [plan_of(seed, fault) for seed in range(20) for fault in FAULTS]
    assert [plan_of(plan.seed, plan.fault) for plan in plans] == plans
    assert len({(plan.collectors, plan.calls, plan.warm_s) for plan in plans}) == len(plans)
    assert plans[0].random("fault").random() == plan_of(0, plans[0].fault).random("fault").random()


def test_the_command_that_makes_a_run_again_names_its_configuration() -> None:
    assert again(plan_of(6, "kill owner")) == "python -m tests.crash.lab --runs 1 --seed 6 --faults 'kill owner'"
    plan = plan_of(6, "ray.cancel", "sync skipped", shards=4, history=False)
    assert again(plan).endswith("--faults ray.cancel --shards 4 --history off --broken 'sync skipped'")


@pytest.mark.parametrize("name", BROKEN)
def test_every_bug_names_what_is_there(name: str) -> None:
    for target, attribute, _ in broken(name):
        assert hasattr(target, attribute)


def test_a_bug_is_caught_by_what_it_breaks_and_not_by_a_run_that_does_not_end() -> None:
    fault, bug = BROKEN["sync skipped"][0], "sync skipped"
    found, stuck = (
        Result(plan_of(seed, fault, bug), acknowledged=10, violations=violations)
        for seed, violations in (
            (1, [Violation(LOST, "a"), Violation(LOST, "b")]),
            (2, [Violation("run did not end", "TimeoutError()")]),
        )
    )
    assert caught(found)
    assert not caught(stuck)
    assert not caught(Result(plan_of(3, fault, bug)))
    assert row(bug, [found, stuck])[2:5] == ("1, 2", "1 of 2", "20")


def test_every_bug_has_faults_that_there_are() -> None:
    assert {fault for faults in BROKEN.values() for fault in faults} <= set(FAULTS)
