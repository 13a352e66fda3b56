"""Proxies that die, ports that stay, nodes that come and go, and which proxy a rollout calls."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter

import pytest

from gym_capture.collect import proxies as module
from gym_capture.collect.proxies import ProxyAddress, ProxyFleet, ProxyLost, choose_proxy
from gym_capture.errors import ConfigError, ProxyUnavailable


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TRY_AGAIN_S", 0.0)
    monkeypatch.setattr(module, "NODES_EVERY_S", 0.0)


class FakeProxy:
    """Starts when `up` is set, as `fault` says; dies when the test says."""

    def __init__(self, node: str, port: int | None, own_port: int, fault: Exception | None) -> None:
        self.node = node
        self.asked_port = port
        self.port = port or own_port
        self.fault = fault
        self.up = asyncio.Event()
        self.up.set()
        self.gone: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.drained = False
        self.killed = False

    async def start(self) -> str:
        await self.up.wait()
        if self.fault is not None:
            raise self.fault
        return f"http://{self.node}:{self.port}"

    async def lost(self) -> str:
        return await asyncio.shield(self.gone)

    async def drain(self) -> None:
        if self.gone.done():
            raise ProxyLost(self.gone.result())
        self.drained = True

    def kill(self) -> None:
        self.killed = True

    def die(self) -> None:
        self.gone.set_result("killed by signal 9")


class Cluster:
    """Nodes, and the proxies that were launched on them."""

    def __init__(self, *nodes: str, faults: list[Exception | None] | None = None) -> None:
        self.alive = set(nodes)
        self.made: list[FakeProxy] = []
        self.faults = faults or []
        self.listed = asyncio.Event()

    def launch(self, node: str, port: int | None) -> FakeProxy:
        fault = self.faults.pop(0) if self.faults else None
        self.made.append(FakeProxy(node, port, 9000 + len(self.made), fault))
        return self.made[-1]

    async def nodes(self) -> set[str]:
        self.listed.set()
        return set(self.alive)


async def settle() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


def urls(fleet: ProxyFleet) -> list[str]:
    return sorted(each.url for each in fleet.current())


async def test_each_node_has_its_replicas_and_they_are_drained_at_the_end() -> None:
    cluster = Cluster("a", "b")
    fleet = ProxyFleet(cluster.launch, cluster.nodes, 2)
    await fleet.open()
    await settle()
    assert Counter(each.node for each in fleet.current()) == {"a": 2, "b": 2}
    assert len(set(urls(fleet))) == 4
    await fleet.close()
    assert all(each.drained and each.killed for each in cluster.made)


async def test_a_proxy_that_dies_is_started_again_under_the_same_url() -> None:
    cluster = Cluster("a")
    fleet = ProxyFleet(cluster.launch, cluster.nodes, 1)
    await fleet.open()
    (before,) = urls(fleet)
    cluster.made[0].die()
    await settle()
    assert urls(fleet) == [before]
    assert [each.asked_port for each in cluster.made] == [None, 9000]
    assert (cluster.made[0].killed, fleet.deaths) == (True, 1)
    await fleet.close()
    assert not cluster.made[0].drained


async def test_while_one_starts_again_the_others_are_called_and_when_none_is_up_its_place_is_named() -> None:
    cluster = Cluster("a")
    fleet = ProxyFleet(cluster.launch, cluster.nodes, 2)
    await fleet.open()
    await settle()
    launch = cluster.launch

    def held(node: str, port: int | None) -> FakeProxy:
        proxy = launch(node, port)
        proxy.up.clear()
        return proxy

    fleet._launch = held
    cluster.made[0].die()
    await settle()
    assert urls(fleet) == ["http://a:9001"]
    cluster.made[1].die()
    await settle()
    assert urls(fleet) == ["http://a:9000", "http://a:9001"]
    await fleet.close()


async def test_a_port_that_is_still_taken_is_tried_again() -> None:
    cluster = Cluster("a", faults=[None, ProxyUnavailable("taken"), ProxyLost("died")])
    fleet = ProxyFleet(cluster.launch, cluster.nodes, 1)
    await fleet.open()
    cluster.made[0].die()
    await settle()
    assert urls(fleet) == ["http://a:9000"]
    assert [each.asked_port for each in cluster.made] == [None, 9000, 9000, 9000]
    await fleet.close()


async def test_a_place_whose_proxies_die_as_they_start_is_given_up_and_the_rest_goes_on(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = [ProxyLost("no memory")] * 3
    cluster = Cluster("a", "b")
    launch = cluster.launch

    def launch_on_a_failing(node: str, port: int | None) -> FakeProxy:
        cluster.faults = [lost.pop()] if node == "a" and lost else []
        return launch(node, port)

    fleet = ProxyFleet(launch_on_a_failing, cluster.nodes, 1)
    monkeypatch.setattr(logging.getLogger("gym_capture"), "propagate", True)
    with caplog.at_level(logging.ERROR, "gym_capture.collect.proxies"):
        await fleet.open()
        await settle()
    assert [each.node for each in fleet.current()] == ["b"]
    assert "node a goes on without this proxy" in caplog.text
    assert Counter(each.node for each in cluster.made) == {"a": 3, "b": 1}
    await fleet.close()


async def test_a_run_whose_proxies_all_fail_ends_with_the_reason() -> None:
    cluster = Cluster("a", faults=[ProxyLost("no memory")] * 3)
    fleet = ProxyFleet(cluster.launch, cluster.nodes, 1)
    with pytest.raises(ProxyUnavailable, match="no memory"):
        await fleet.open()
    with pytest.raises(ProxyUnavailable):
        fleet.current()
    await fleet.close()
    assert all(each.killed for each in cluster.made)


async def test_what_no_other_proxy_could_mend_ends_the_start_at_once() -> None:
    cluster = Cluster("a", faults=[ConfigError("bad upstream")])
    fleet = ProxyFleet(cluster.launch, cluster.nodes, 1)
    with pytest.raises(ConfigError, match="bad upstream"):
        await fleet.open()
    assert len(cluster.made) == 1
    await fleet.close()


async def test_a_new_node_gets_its_proxy_and_a_lost_nodes_is_forgotten() -> None:
    cluster = Cluster("a")
    fleet = ProxyFleet(cluster.launch, cluster.nodes, 1)
    await fleet.open()
    cluster.alive = {"b"}
    cluster.listed.clear()
    await cluster.listed.wait()
    await settle()
    assert [each.node for each in fleet.current()] == ["b"]
    assert cluster.made[0].killed
    await fleet.close()


async def test_a_proxy_that_dies_as_it_is_drained_ends_the_fleet_all_the_same() -> None:
    cluster = Cluster("a")
    fleet = ProxyFleet(cluster.launch, cluster.nodes, 1)
    await fleet.open()
    (proxy,) = cluster.made
    proxy.die()
    await fleet.close()
    assert all(each.killed for each in cluster.made)


def test_a_rollout_calls_a_proxy_of_its_own_node_and_rollouts_spread_over_them() -> None:
    there = [ProxyAddress("a", "http://a:1"), ProxyAddress("b", "http://b:1"), ProxyAddress("a", "http://a:2")]
    chosen = Counter(choose_proxy(there, "a", f"{number}-0") for number in range(400))
    assert set(chosen) == {"http://a:1", "http://a:2"}
    assert min(chosen.values()) > 120
    assert choose_proxy(there, "a", "7-0") == choose_proxy(list(reversed(there)), "a", "7-0")
    assert choose_proxy(there[:1], "c", "7-0") == "http://a:1"
    assert choose_proxy([], "a", "7-0") is None
