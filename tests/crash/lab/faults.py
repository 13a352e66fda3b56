"""The faults, by name: each is a coroutine that does it to a scene, at once, and returns when it is over."""

from __future__ import annotations

import asyncio
import errno
import signal
import time
from collections.abc import Awaitable, Callable
from typing import Any

import ray

import gym_capture
from gym_capture.errors import DirectoryHeld
from gym_capture.storage import fault_points
from tests.crash.lab.cluster import children_of, signal_pid
from tests.crash.lab.network import DisturbedPath
from tests.crash.lab.scene import HEAL_S, Scene
from tests.crash.lab.workers import filler

Fault = Callable[[Scene], Awaitable[None]]

FAULTS: dict[str, Fault] = {}

WRITE_POINTS = (fault_points.before(fault_points.APPEND), fault_points.before(fault_points.COPY_APPEND))
SYNC_POINTS = (
    fault_points.before(fault_points.SYNC),
    fault_points.before(fault_points.COPY_SYNC),
    fault_points.before(fault_points.CUT_SYNC),
)
RENAME_POINTS = tuple(
    fault_points.before(fault_points.step(label, name))
    for label, name in ((fault_points.OWNER, "rename"), (fault_points.EPOCH, "link"), (fault_points.SEGMENT, "create"))
)
READ_ONLY_POINTS = tuple(
    point
    for point in fault_points.ALL
    if point.startswith("before ") and point.endswith(("-write", "-link", "-rename", "-create", " beat"))
)
"""What a directory that became read-only refuses; files that are open go on."""

RUNNING_POINTS = tuple(
    point
    for name in (fault_points.APPEND, fault_points.SYNC, fault_points.OWNER_CHECK, fault_points.BEAT)
    for point in (fault_points.before(name), fault_points.after(name))
)
UNANSWERED_POINTS = (
    fault_points.after(fault_points.SYNC),
    fault_points.before(fault_points.OWNER_CHECK),
    fault_points.after(fault_points.OWNER_CHECK),
)
"""What was written is on disk there, and nobody has been told."""

TAKING_POINTS = tuple(
    point
    for point in fault_points.ALL
    if point not in RUNNING_POINTS and not point.split(" ")[1].startswith((fault_points.RUN + "-", fault_points.STOP))
)
"""Those that an owner passes when it takes its directory."""

RAY_GIVES_UP_S = 180.0
"""Ray has given a silent node up by then, also with its own settings."""


def fault(name: str) -> Callable[[Fault], Fault]:
    """Register one."""

    def register(function: Fault) -> Fault:
        FAULTS[name] = function
        return function

    return register


# -- processes ------------------------------------------------------------------------------------------------------


@fault("kill owner")
async def kill_owner(scene: Scene) -> None:
    for _ in range(scene.draw.randint(1, 3)):
        epoch = scene.epoch()
        scene.kill(scene.owner_pid(), "owner")
        await scene.until(lambda epoch=epoch: scene.epoch() > epoch, "another epoch")  # type: ignore[misc]
        await asyncio.sleep(scene.draw.uniform(0.0, 0.6))


@fault("freeze owner")
async def freeze_owner(scene: Scene) -> None:
    await scene.freeze([scene.owner_pid()], scene.draw.uniform(0.5, 1.8 * scene.plan.lease_s), "owner")


@fault("kill worker task")
async def kill_task(scene: Scene) -> None:
    scene.kill(await scene.busy("task"), "task")


@fault("kill worker actor")
async def kill_actor(scene: Scene) -> None:
    scene.kill(await scene.busy("actor"), "actor")


@fault("kill owner and worker")
async def kill_both(scene: Scene) -> None:
    """At once, so that the log alone knows of the worker's claims."""
    worker = await scene.busy(scene.draw.choice(["task", "actor"]))
    scene.kill(scene.owner_pid(), "owner")
    scene.kill(worker, "worker")


@fault("freeze worker task")
async def freeze_task(scene: Scene) -> None:
    await scene.freeze([await scene.busy("task")], scene.draw.uniform(0.3, 0.5) * scene.plan.lease_s, "task")


@fault("freeze worker past its lease")
async def freeze_past_lease(scene: Scene) -> None:
    kind = scene.draw.choice(["task", "actor"])
    await scene.freeze([await scene.busy(kind)], scene.draw.uniform(1.5, 2.2) * scene.plan.lease_s, kind)


# -- nodes ----------------------------------------------------------------------------------------------------------


@fault("kill owner's node")
async def kill_owner_node(scene: Scene) -> None:
    """The raylet and all of its processes at once, as when a machine is lost."""
    raylet = scene.cluster.raylet(scene.owner_node())
    lost = [raylet, *children_of(raylet)]
    scene.note(f"kill the owner's node {lost}")
    for pid in lost:
        signal_pid(pid, signal.SIGKILL)


@fault("kill owner's raylet")
async def kill_owner_raylet(scene: Scene) -> None:
    """The raylet alone: the owner lives on for as long as it takes to notice."""
    scene.kill(scene.cluster.raylet(scene.owner_node()), "raylet of the owner's node")


@fault("kill worker's node")
async def kill_worker_node(scene: Scene) -> None:
    others = [node for node in scene.cluster.nodes() if node != scene.owner_node()]
    scene.kill(scene.cluster.raylet(scene.draw.choice(others)), "raylet of a worker's node")


@fault("freeze owner's node")
async def freeze_owner_node(scene: Scene) -> None:
    """All of it, for longer than Ray waits: the owner comes back elsewhere, and the old one thaws."""
    raylet = scene.cluster.raylet(scene.owner_node())
    pids = [raylet, *children_of(raylet)]
    epoch = scene.epoch()
    frozen = asyncio.ensure_future(scene.freeze(pids, RAY_GIVES_UP_S, "the owner's node"))
    try:
        await scene.until(lambda: scene.epoch() > epoch, "an owner elsewhere", RAY_GIVES_UP_S - 5.0)
        await asyncio.sleep(scene.draw.uniform(0.0, 2.0))
    finally:
        frozen.cancel()
        scene.thaw()


# -- two owners -----------------------------------------------------------------------------------------------------


@fault("second owner takes over from a frozen one")
async def take_over(scene: Scene) -> None:
    """Another actor's, as of another cluster that sees the directory. It is refused while the first one beats."""
    config = scene.config()
    config["capture"]["name"] = f"second-{scene.folder.name}"
    first = scene.epoch()
    try:
        await asyncio.to_thread(gym_capture.start, config)
    except DirectoryHeld:
        pass
    else:
        raise AssertionError("a second owner began while the first one was there")
    frozen = asyncio.ensure_future(scene.freeze([scene.owner_pid()], HEAL_S, "owner"))
    try:
        await asyncio.sleep(0)
        await asyncio.to_thread(gym_capture.start, config, takeover=True)
        assert scene.epoch() > first
        await asyncio.sleep(scene.draw.uniform(0.0, 0.3))
    finally:
        frozen.cancel()
        scene.thaw()


# -- connections ----------------------------------------------------------------------------------------------------


def _path(scene: Scene) -> DisturbedPath:
    assert scene.path is not None
    return scene.path


@fault("connections cut")
async def cut(scene: Scene) -> None:
    path = _path(scene)
    for number in range(scene.draw.randint(3, 8)):
        done = path.cuts
        path.cut_after = 1 + int(scene.draw.expovariate(1 / 30_000))
        if not number:
            scene.note("cut")
        await scene.until(lambda done=done: path.cuts > done, "the next cut")  # type: ignore[misc]


@fault("connections delayed")
async def delay(scene: Scene) -> None:
    path = _path(scene)
    path.delay_s = scene.draw.uniform(0.05, 0.4)
    scene.note(f"delay {path.delay_s:.2f} s")
    await asyncio.sleep(scene.draw.uniform(1.0, 3.0))
    path.delay_s = 0.0


@fault("connections half-open")
async def half_open(scene: Scene) -> None:
    path = _path(scene)
    start = time.monotonic()
    path.swallow = True
    scene.note("swallow")
    await asyncio.sleep(scene.draw.uniform(0.2, 1.5) * scene.plan.lease_s)
    path.swallow = False
    # Clients notice by themselves, after a lease at most.
    await scene.until(lambda: scene.acknowledged_after(time.monotonic() - 1.0), "writes pass again")
    scene.journal.note("cut-off", start)


# -- Ray and its users ----------------------------------------------------------------------------------------------


@fault("ray.cancel")
async def cancel(scene: Scene) -> None:
    scene.note("cancel")
    assert scene.collector is not None
    for _ in range(scene.draw.randint(4, 10)):
        await asyncio.sleep(scene.draw.uniform(0.0, 0.2))
        running = list(scene.collector.running.items())
        if running:
            ref, kind = scene.draw.choice(running)
            force = kind == "task" and scene.draw.random() < 0.3
            await asyncio.to_thread(ray.cancel, ref, force=force)


@fault("object-store pressure")
async def fill_the_object_store(scene: Scene) -> None:
    """Twice what the nodes' stores hold: Ray spills, and stalls what needs room."""
    scene.note("fill the object store")
    held = [filler.remote(30 << 20) for _ in range(20)]
    await asyncio.wait([asyncio.ensure_future(_result(ref)) for ref in held], timeout=scene.draw.uniform(3.0, 6.0))
    del held


async def _result(ref: Any) -> None:
    await ref


@fault("fork in a worker")
async def fork(scene: Scene) -> None:
    """The workers fork all the while; here the owner dies under parents and children alike."""
    scene.kill(scene.owner_pid(), "owner")


@fault("two drivers race to start")
async def race(scene: Scene) -> None:
    """They have raced when the run began; here the owner dies."""
    scene.kill(scene.owner_pid(), "owner")


@fault("driver killed and rejoined")
async def kill_driver(scene: Scene) -> None:
    scene.note("kill the driver")
    await scene.lose_driver()


# -- disk -----------------------------------------------------------------------------------------------------------


async def _fail(scene: Scene, number: int, points: tuple[str, ...], seconds: float) -> None:
    scene.note(f"{errno.errorcode[number]} at {', '.join(points)} for {seconds:.2f} s")
    scene.control(fail=dict.fromkeys(points, number))
    await asyncio.sleep(seconds)
    scene.control(fail={})


@fault("sync slow by 10 ms")
async def slow_sync(scene: Scene) -> None:
    scene.note("slow sync")
    scene.control(slow={fault_points.before(fault_points.SYNC): 0.01})
    await asyncio.sleep(2.0)
    scene.control(slow={})


@fault("sync slow by 1 s")
async def slower_sync(scene: Scene) -> None:
    scene.note("slower sync")
    scene.control(slow={fault_points.before(fault_points.SYNC): 1.0})
    await asyncio.sleep(4.0)
    scene.control(slow={})


@fault("EIO on write")
async def write_fails(scene: Scene) -> None:
    await _fail(scene, errno.EIO, WRITE_POINTS, scene.draw.uniform(0.2, 2.0))


@fault("EIO on sync")
async def sync_fails(scene: Scene) -> None:
    await _fail(scene, errno.EIO, SYNC_POINTS, scene.draw.uniform(0.2, 2.0))


@fault("ENOSPC on write")
async def no_space(scene: Scene) -> None:
    await _fail(scene, errno.ENOSPC, WRITE_POINTS, scene.draw.uniform(0.5, 4.0))


@fault("EIO on rename")
async def rename_fails(scene: Scene) -> None:
    """While no name can be given, the owner has to take its directory anew."""
    scene.control(fail=dict.fromkeys((*RENAME_POINTS, *SYNC_POINTS), errno.EIO))
    scene.note("EIO on rename, link and create, after a failed sync")
    await asyncio.sleep(0.3)
    scene.control(fail=dict.fromkeys(RENAME_POINTS, errno.EIO))
    await asyncio.sleep(scene.draw.uniform(0.2, 2.0))
    scene.control(fail={})


@fault("directory read-only")
async def read_only(scene: Scene) -> None:
    """No file can be made, none renamed; then the owner dies, and the next one cannot begin until it is over."""
    await asyncio.sleep(0)
    scene.note("read-only")
    scene.control(fail=dict.fromkeys(READ_ONLY_POINTS, errno.EROFS))
    await asyncio.sleep(scene.draw.uniform(0.3, 1.0))
    if scene.draw.random() < 0.6:
        signal_pid(scene.owner_pid(), signal.SIGKILL)
        await asyncio.sleep(scene.draw.uniform(0.5, 3.0))
    scene.control(fail={})


# -- clocks ---------------------------------------------------------------------------------------------------------


@fault("clock jumps")
async def clock_jumps(scene: Scene) -> None:
    for _ in range(scene.draw.randint(2, 4)):
        jump = scene.draw.choice([-1, 1]) * scene.draw.choice([5.0, 3600.0, 86_400.0 * 400])
        scene.note(f"wall clock off by {jump:.0f} s")
        scene.control(wall_s=jump)
        if scene.draw.random() < 0.4:
            signal_pid(scene.owner_pid(), signal.SIGKILL)
        await asyncio.sleep(scene.draw.uniform(0.3, 1.2))


# -- every step -----------------------------------------------------------------------------------------------------


async def _kill_at(scene: Scene, points: tuple[str, ...], *, drop: bool) -> None:
    """The owner dies exactly there; for a point of taking over, it is killed first so that it comes by."""
    point = scene.draw.choice(points)
    times = 1 if points is TAKING_POINTS else scene.draw.randint(1, 3 if point.endswith(" beat") else 20)
    scene.control(kill={"point": point, "times": times, "drop": drop})
    if points is TAKING_POINTS:
        scene.kill(scene.owner_pid(), "owner")
    try:
        await scene.until(scene.fired, f"the owner passes {point}", 15.0)
    except AssertionError:
        # It has no occasion in this run, a copy of nothing say.
        scene.note(f"{point} was not passed")
        point, times = fault_points.after(fault_points.APPEND), 1
        scene.control(kill={"point": point, "times": times, "drop": drop})
        await scene.until(scene.fired, f"the owner passes {point}")
    scene.note(f"owner killed {point}, the {times}. time")
    scene.control(kill=None)


@fault("kill at a step of a write")
async def kill_at_write(scene: Scene) -> None:
    await _kill_at(scene, RUNNING_POINTS, drop=False)


@fault("kill between sync and answer")
async def kill_before_answer(scene: Scene) -> None:
    await _kill_at(scene, UNANSWERED_POINTS, drop=False)


@fault("kill at a step of a takeover")
async def kill_at_takeover(scene: Scene) -> None:
    await _kill_at(scene, TAKING_POINTS, drop=False)


@fault("host forgets at a step of a write")
async def forget_at_write(scene: Scene) -> None:
    await _kill_at(scene, RUNNING_POINTS, drop=True)


@fault("host forgets at a step of a takeover")
async def forget_at_takeover(scene: Scene) -> None:
    await _kill_at(scene, TAKING_POINTS, drop=True)


NODE_FAULTS = ("kill owner's node", "kill owner's raylet", "kill worker's node", "freeze owner's node")
"""They cost a raylet, which is replaced afterwards."""
