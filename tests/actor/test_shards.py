"""What the owners of a run's shards are made with, and what one of them refuses. No Ray is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gym_capture.actor.launch import actor_options
from gym_capture.actor.owner import Owner
from gym_capture.actor.owner_spec import OwnerSpec, spec_of
from gym_capture.api import _run_name
from gym_capture.client.options import ClientOptions
from gym_capture.config import CaptureConfig, load_config
from gym_capture.errors import ConfigError, ShardGiven
from gym_capture.model.shards import shard_of
from gym_capture.reach.source import Source

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
