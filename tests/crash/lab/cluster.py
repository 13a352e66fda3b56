"""A Ray cluster of several raylets on this machine, in a folder of its own, of which nothing is left in the end."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import tempfile
import time
import warnings
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
        self._thawing: list[int] = []
        self._cluster = Cluster()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self._cluster.add_node(
                    num_cpus=1,
                    include_dashboard=False,
                    temp_dir=str(self._folder),
                    _system_config=FAST_HEALTH_CHECKS if system_config is None else system_config,
                )
            self.address: str = self._cluster.address
            self.replace_lost()
            join(self.address)
        except BaseException:
            self.close()
            raise

    def replace_lost(self) -> None:
        """As many nodes as there should be."""
        for node in list(self._cluster.worker_nodes):
            if not self._alive(node):
                self._remove(node)
        tries = 0
        while len(self._cluster.worker_nodes) < self._nodes:
            tries += 1
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    self._cluster.add_node(num_cpus=2, resources={OWNER_RESOURCE: 1})
            except Exception:
                # Ray gives a node 30 s to come up, which a busy machine may not have.
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
            self._cluster.shutdown()  # type: ignore[no-untyped-call]
        until = time.monotonic() + 10.0
        while (left := processes_in(str(self._folder))) and time.monotonic() < until:
            for pid in left:
                signal_pid(pid, signal.SIGKILL)
            time.sleep(0.05)
        shutil.rmtree(self._folder, ignore_errors=True)


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
