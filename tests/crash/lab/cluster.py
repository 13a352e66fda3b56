"""A Ray cluster of several raylets on this machine, in a folder of its own, of which nothing is left in the end."""

from __future__ import annotations

import inspect
import logging
import os
import shutil
import signal
import socket
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import ray

from tests.crash.lab.in_process import HOOK
from tests.ray_cluster import ROOT

FAST_HEALTH_CHECKS = {
    "health_check_initial_delay_ms": 500,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 500,
    "health_check_failure_threshold": 3,
}
"""Ray's `system_config` of the lab. `RAY_health_check_period_ms` etc. in the environment of the head say the same."""

CALM_HEALTH_CHECKS = {
    "health_check_initial_delay_ms": 5000,
    "health_check_period_ms": 1000,
    "health_check_timeout_ms": 4000,
    "health_check_failure_threshold": 4,
}
"""For a long run, which a moment without a CPU must not end."""

PATIENCE_S = 150.0
"""A node may take so long to come up; Ray gives it 30 s, which a busy machine may not have."""

HELPER_PORTS = (
    "metrics_agent_port",
    "metrics_export_port",
    "dashboard_agent_listen_port",
    "runtime_env_agent_port",
)

OWNER_RESOURCE = "capture_owner"
"""What the nodes have that an owner may run on: all but the head."""

TRIES = 5


def join(address: str) -> None:
    """Connect this process as a driver whose workers load the lab's hook."""
    # Ray prints a paragraph for every worker that dies, whatever it is asked; here that is what is done to them.
    ray._private.worker.print_to_stdstream = lambda *_, **__: None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ray.init(
            address=address,
            log_to_driver=False,
            runtime_env={"worker_process_setup_hook": HOOK},
            logging_level=logging.ERROR,
        )


class LabCluster:
    """A head, where this driver is, and `nodes` further raylets; lost ones are replaced.

    Args:
        nodes: how many beside the head.
        system_config: Ray's; None: Ray's own defaults.
    """

    def __init__(self, nodes: int = 2, system_config: dict[str, Any] | None = None) -> None:
        from ray.cluster_utils import Cluster

        # Short, for Ray's sockets lie in it. Workers import from this checkout.
        self._folder = Path(tempfile.mkdtemp(prefix="lab-", dir="/tmp"))
        paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *(path for path in paths if path and path != str(ROOT))])
        self._nodes = nodes
        self._cluster: Any = Cluster()
        try:
            self._add(
                num_cpus=1,
                include_dashboard=False,
                temp_dir=str(self._folder),
                _system_config={
                    "agent_register_timeout_ms": int(PATIENCE_S * 1000),
                    **(FAST_HEALTH_CHECKS if system_config is None else system_config),
                },
            )
            self.address: str = self._cluster.address
            self.replace_lost()
            join(self.address)
        except BaseException:
            self.close()
            raise

    def _add(self, **node: Any) -> None:
        with warnings.catch_warnings(), _patience() as helpers:
            warnings.simplefilter("ignore")
            self._cluster.add_node(**node)
        _await_listening(helpers)

    def replace_lost(self) -> None:
        """As many nodes as there should be."""
        for node in list(self._cluster.worker_nodes):
            if not self._alive(node):
                self._remove(node)
        tries = 0
        while len(self._cluster.worker_nodes) < self._nodes:
            tries += 1
            try:
                self._add(num_cpus=2, resources={OWNER_RESOURCE: 1})
            except Exception:
                if tries == TRIES:
                    raise
                self._end_strays()

    def _end_strays(self) -> None:
        """Kill raylets that Ray gave up, before they come up after all."""
        known = [node for node in (self._cluster.head_node, *self._cluster.worker_nodes) if node is not None]
        pids = {each.process.pid for node in known for each in node.all_processes.get("raylet", [])}
        for pid in children_of(os.getpid()):
            if pid not in pids and b"raylet/raylet" in Path(f"/proc/{pid}/cmdline").read_bytes():
                signal_pid(pid, signal.SIGKILL)

    @staticmethod
    def _alive(node: Any) -> bool:
        raylets = node.all_processes.get("raylet", [])
        return bool(raylets) and all(each.process.poll() is None for each in raylets)

    def _remove(self, node: Any) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._cluster.remove_node(node, allow_graceful=False)

    def lost(self) -> int:
        """How many nodes are lost and not replaced."""
        return self._nodes - sum(map(self._alive, self._cluster.worker_nodes))

    def nodes(self) -> list[str]:
        """The ids of the nodes beside the head."""
        return [node.node_id for node in self._cluster.worker_nodes]

    def raylet(self, node_id: str) -> int:
        """The pid of a node's raylet."""
        for node in self._cluster.worker_nodes:
            if node.node_id == node_id:
                return int(node.all_processes["raylet"][0].process.pid)
        raise LookupError(f"no node {node_id}")

    def close(self) -> None:
        """End every process, and remove the folder."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ray.shutdown()
            for pid in processes_in(str(self._folder)):
                signal_pid(pid, signal.SIGCONT)
            for node in list(self._cluster.worker_nodes):
                self._remove(node)
            self._cluster.shutdown()
        until = time.monotonic() + 10.0
        while (left := processes_in(str(self._folder))) and time.monotonic() < until:
            for pid in left:
                signal_pid(pid, signal.SIGKILL)
            time.sleep(0.05)
        shutil.rmtree(self._folder, ignore_errors=True)


@contextmanager
def _patience() -> Iterator[list[int]]:
    """Let Ray wait longer for a node that it starts, and a node not at all for its helpers.

    A raylet gives up when its helpers have not written down their ports within 20 s. They are given ports here, and
    these are written down for them. Yields the ports that have to be awaited before work is given to the node.
    """
    from ray._private import services

    get_node: Any = services.get_node
    start_raylet: Any = services.start_raylet
    given = inspect.signature(start_raylet)
    awaited: list[int] = []

    def patiently(*args: Any) -> Any:
        until = time.monotonic() + PATIENCE_S
        while True:
            try:
                return get_node(*args)
            except RuntimeError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.2)

    def with_ports(*args: Any, **more: Any) -> Any:
        bound = given.bind(*args, **more).arguments
        for name, port in zip(HELPER_PORTS, free_ports(len(HELPER_PORTS)), strict=True):
            bound[name] = port
            Path(bound["session_dir"], f"{name}_{bound['node_id']}").write_text(str(port))
        awaited.append(bound["runtime_env_agent_port"])
        return start_raylet(**bound)

    services.get_node, services.start_raylet = patiently, with_ports
    try:
        yield awaited
    finally:
        services.get_node, services.start_raylet = get_node, start_raylet


def _await_listening(ports: list[int]) -> None:
    """Until somebody listens on each: a first driver of a node whose helper was not there waits for ever."""
    until = time.monotonic() + PATIENCE_S
    for port in ports:
        while True:
            try:
                socket.create_connection((_own_address(), port), 1.0).close()
                break
            except OSError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.2)


def _own_address() -> str:
    """The address that Ray's processes of this machine listen on."""
    from ray._private import services

    find: Any = services.get_node_ip_address
    return str(find())


def free_ports(count: int) -> list[int]:
    """Ports that nobody has now."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("", 0))
        return [each.getsockname()[1] for each in sockets]


def signal_pid(pid: int, number: int) -> bool:
    """Send a signal; False when there is no such process any more."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def processes_in(folder: str) -> list[int]:
    """The processes whose command line or environment names the folder: those of that cluster."""
    found = []
    marker = folder.encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if marker in (entry / "cmdline").read_bytes() or marker in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def children_of(pid: int) -> list[int]:
    """The processes whose parent it is."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue
            if int(stat.rpartition(")")[2].split()[1]) == pid:
                found.append(int(entry.name))
    return found
