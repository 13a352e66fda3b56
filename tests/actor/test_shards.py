"""What the owners of a run's shards are made with, and what one of them refuses. No Ray is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gym_capture.actor import launch as launching
from gym_capture.actor.launch import Launched, actor_options
from gym_capture.actor.owner import Owner
from gym_capture.actor.owner_spec import OwnerSpec, Ready, spec_of
from gym_capture.api import _run_name, _source_by_directory, connect
from gym_capture.client.options import ClientOptions
from gym_capture.config import CaptureConfig, load_config
from gym_capture.errors import ConfigError, DirectoryHeld, MissingRunMarker, ShardGiven
from gym_capture.model.shards import shard_of
from gym_capture.reach.source import Source
from gym_capture.storage.run_layout import create_or_adopt_shards
from gym_capture.testing.conformance import some_exchange

NODE = "ab" * 28


def config_of(tmp_path: Path, **capture: Any) -> CaptureConfig:
    return load_config({"model_call_capture_dir": str(tmp_path), "capture": {"shards": 3, **capture}})


def specs_of(config: CaptureConfig) -> list[OwnerSpec]:
    return [spec_of(config, "ab" * 16, start="s", takeover=False, shard=shard) for shard in range(3)]


def test_shards_have_names_and_ports_of_their_own(tmp_path: Path) -> None:
    specs = specs_of(config_of(tmp_path, name="mine", endpoint={"port": 7000}))
    assert [spec.name for spec in specs] == ["mine", "mine-shard-1", "mine-shard-2"]
    assert [spec.port for spec in specs] == [7000, 7001, 7002]
    assert {(spec.shards, spec.directory) for spec in specs} == {(3, str(tmp_path))}
    assert {spec.port for spec in specs_of(config_of(tmp_path))} == {0}
    assert _run_name("mine-shard-2", 3) == "mine"


@pytest.mark.parametrize(("node", "strategies"), [("any", ["SPREAD"] * 3), ("driver", ["SPREAD"] * 2)])
def test_ray_spreads_what_it_is_free_to_place(tmp_path: Path, node: str, strategies: list[str]) -> None:
    config = config_of(tmp_path, placement={"node": node})
    specs = specs_of(config)[3 - len(strategies) :]  # where the driver is, only a running Ray can say
    found = [actor_options(spec, config.capture.placement)["scheduling_strategy"] for spec in specs]
    assert found == strategies


def test_a_node_that_is_named_holds_every_shard_and_one_shard_is_placed_as_ever(tmp_path: Path) -> None:
    config = config_of(tmp_path, placement={"node": NODE})
    found = [actor_options(spec, config.capture.placement)["scheduling_strategy"].node_id for spec in specs_of(config)]
    assert found == [NODE] * 3
    single = config_of(tmp_path, shards=1, placement={"node": "any"})
    spec = spec_of(single, "ab" * 16, start="s", takeover=False)
    assert "scheduling_strategy" not in actor_options(spec, single.capture.placement)


@pytest.mark.parametrize("wrong", ["shards=0", "shards=257", "name=run-shard-1"])
def test_what_cannot_be_a_number_or_name_is_refused(tmp_path: Path, wrong: str) -> None:
    with pytest.raises(ConfigError, match=r"capture\."):
        load_config({"model_call_capture_dir": str(tmp_path)}, [f"capture.{wrong}"])


async def test_an_owner_speaks_for_its_own_rollouts_only(tmp_path: Path) -> None:
    spec = specs_of(config_of(tmp_path, name="mine"))[1]
    owner = Owner(spec, "actor", "node", "127.0.0.1", takeover=False)
    mine = next(f"r{number}" for number in range(99) if shard_of(f"r{number}", 3) == 1)
    other = next(f"r{number}" for number in range(99) if shard_of(f"r{number}", 3) == 2)
    owner.require_own(mine)
    for ask in (
        owner.quiesce(other, 1.0),
        owner.merge(other, None, None),
        owner.clear([other], "q"),
        owner.stats(other),
    ):
        with pytest.raises(ShardGiven, match=f"rollout {other}, which belongs to shard 2") as refused:
            await ask
        assert refused.value.shard == 2
    with pytest.raises(ShardGiven, match="cannot speak for the run"):
        await owner.quiesce(None, 1.0)


def test_a_source_knows_where_each_shard_is_found() -> None:
    source = Source("ab" * 16, "/runs/1", "mine", "gym_capture", "auto", ClientOptions(), 3)
    found = [(each.directory, each.name) for each in map(source.of_shard, range(3))]
    assert found == [
        ("/runs/1/shard-000", "mine"),
        ("/runs/1/shard-001", "mine-shard-1"),
        ("/runs/1/shard-002", "mine-shard-2"),
    ]
    single = Source("ab" * 16, "/runs/1", "mine", "gym_capture", "auto", ClientOptions())
    assert single.of_shard(0) == single


async def test_each_owner_serves_its_folder_and_the_run_is_found_by_its_name(tmp_path: Path) -> None:
    config = config_of(tmp_path, name="mine", endpoint={"host": "127.0.0.1"})
    run = create_or_adopt_shards(str(tmp_path), 3).run
    specs = [spec_of(config, run, start="s", takeover=False, shard=shard) for shard in range(3)]
    owners = [Owner(spec, f"actor {spec.shard}", "node", "127.0.0.1", takeover=False) for spec in specs]
    for owner in owners:
        await owner.open(lambda why: None)
    source = _source_by_directory(tmp_path, "gym_capture", "auto")
    assert (source.run, source.name, source.shards) == (run, "mine", 3)
    async with connect(tmp_path) as capture:
        rollouts = [f"r{number}" for number in range(9)]
        await capture.record_many([(rollout_id, some_exchange("a")) for rollout_id in rollouts])
        assert await capture.quiesce()
        stats = await capture.stats()
        assert [shard["directory"] for shard in stats["shards"]] == [str(tmp_path / f"shard-00{n}") for n in range(3)]
    for shard, owner in enumerate(owners):
        mine = [rollout_id for rollout_id in rollouts if shard_of(rollout_id, 3) == shard]
        assert sorted(owner.service.ledger.rollouts) == mine
        assert [(await owner.clear(mine, "once"))[rollout_id] for rollout_id in mine] == [1] * len(mine)
        await owner.close()
    (tmp_path / "RUN").unlink()
    restarted = Owner(specs[1], "actor 1", "node", "127.0.0.1", takeover=False)
    with pytest.raises(MissingRunMarker):
        await restarted.open(lambda why: None)


def test_a_start_that_one_shard_fails_stops_what_it_created_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stopped: list[Any] = []
    monkeypatch.setattr(launching, "_stop", stopped.append)
    spec = specs_of(config_of(tmp_path))[0]

    def start(handle: str, created: bool) -> Launched:
        return Launched(
            handle,
            Ready(run="", directory="", start="", settings={}, actor_id="", node="", pid=0, epoch=1),
            spec,
            created,
        )

    def fail() -> Launched:
        raise DirectoryHeld("held")

    starts = [lambda: start("created", True), fail, lambda: start("found", False)]
    with pytest.raises(DirectoryHeld, match="held"):
        launching._all_or_none(starts)
    assert stopped == ["created"]
    assert [each.handle for each in launching._all_or_none([starts[0], starts[2]])] == ["created", "found"]
