"""Connections are cut at random bytes under load: what was under way is sent again, and nothing doubles."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import gym_capture
from gym_capture.storage.posix_files import PosixFiles, make_capture_directory
from gym_capture.storage.run_marker import create_or_adopt_run
from gym_capture.testing.cutting_proxy import CuttingProxy
from tests.crash.load import Load, Prober, check_promises
from tests.crash.processes import NO_LEASE_ENDS_S, Child
from tests.ray_cluster import wait_until

CUTS = 60
MOST_CUTS = 600
MEAN_BYTES = 80_000
SEED = 20_262


@pytest.mark.crash
@pytest.mark.timeout(240)
def test_connections_cut_at_random_bytes_lose_nothing_and_double_nothing(tmp_path: Path) -> None:
    directory = tmp_path / "captures"
    make_capture_directory(directory)
    create_or_adopt_run(PosixFiles(str(directory)))
    rng = random.Random(SEED)
    with Child("tests.crash.owner_process", str(directory), "owner", f"lease_s={NO_LEASE_ENDS_S}") as owner:
        proxy = CuttingProxy()
        proxy.target = ("127.0.0.1", owner.hear()["port"])
        load = Load(directory, tmp_path / "registers", workers=2, tasks=50, seed=SEED, port=proxy.port)
        capture = gym_capture.connect(capture_dir=directory)
        prober = Prober(capture, load.paths, SEED)
        try:
            prober.start()
            cut = 0
            # Some batch is applied, its answer cut off, and it comes again: chance decides how soon.
            while cut < CUTS or not owner.ask("stats")["stats"]["counts"]["repeated_batches"]:
                assert cut < MOST_CUTS
                proxy.cut_after = 1 + int(rng.expovariate(1 / MEAN_BYTES))
                wait_until(lambda cut=cut: proxy.cuts > cut, "the next cut")  # type: ignore[misc]
                cut += 1
            made = load.finish()
            assert capture.sync.quiesce(None, timeout_s=30.0)
            counts = owner.ask("stats")["stats"]["counts"]
        finally:
            prober.finish()
            load.end()
            proxy.close()
            capture.sync.close()
        assert owner.ask("leave") == {"left": "asked"}
    told = load.told()
    assert len(told.durable()) == made
    assert check_promises(directory, told, prober.yes) == made
    assert counts["repeated_batches"] > 0
