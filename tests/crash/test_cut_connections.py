"""Connections are cut at random bytes under load: what was under way is sent again, and nothing doubles."""

from __future__ import annotations

from pathlib import Path

import pytest

import gym_capture
from gym_capture.storage.posix_files import PosixFiles, make_capture_directory
from gym_capture.storage.run_marker import create_or_adopt_run
from tests.crash.cutting_proxy import CuttingProxy
from tests.crash.load import Load, Prober, check_promises
from tests.crash.processes import Child
from tests.ray_cluster import wait_until

CUTS = 100
SEED = 20_262


@pytest.mark.crash
@pytest.mark.timeout(240)
def test_connections_cut_at_random_bytes_lose_nothing_and_double_nothing(tmp_path: Path) -> None:
    directory = tmp_path / "captures"
    make_capture_directory(directory)
    create_or_adopt_run(PosixFiles(str(directory)))
    with Child("tests.crash.owner_process", str(directory), "owner") as owner:
        serving = owner.hear()
        proxy = CuttingProxy(serving["port"], seed=SEED, mean_bytes=150_000)
        load = Load(directory, tmp_path / "registers", workers=2, tasks=50, seed=SEED, port=proxy.port)
        capture = gym_capture.connect(capture_dir=directory)
        prober = Prober(capture, load.paths, SEED)
        try:
            prober.start()
            wait_until(lambda: proxy.cuts >= CUTS, f"{CUTS} cuts", 180.0)
            proxy.cutting = False
            made = load.finish()
            assert capture.sync.quiesce(None, timeout_s=30.0)
            counts = owner.ask("stats")["stats"]["counts"]
        finally:
            prober.finish()
            load.end()
            proxy.end()
            capture.sync.close()
        assert owner.ask("leave") == {"left": "asked"}
    told = load.told()
    assert len(told.durable()) == made
    assert check_promises(directory, told, prober.yes) == made
    assert counts["repeated_batches"] > 0, "some batch was applied, its answer cut off, and it came again"
