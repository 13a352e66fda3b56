"""Disks that are slow or fail, clocks that jump, and a death at every step of a write and of a takeover."""

from __future__ import annotations

import asyncio
import errno
import signal

from gym_capture.storage import fault_points
from tests.crash.lab.cluster import signal_pid
from tests.crash.lab.fault_registry import fault
from tests.crash.lab.scene import Scene

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
    if point not in RUNNING_POINTS
    and not point.split(" ")[1].startswith((fault_points.RUN + "-", fault_points.STOP, fault_points.CHECKPOINT))
)
"""Those that an owner passes when it takes its directory."""


# -- disk --------------------------------------------------------------------------------------------------------------


async def _fail(scene: Scene, number: int, points: tuple[str, ...], seconds: float) -> None:
    scene.note(f"{errno.errorcode[number]} at {', '.join(points)} for {seconds:.2f} s, {scene.owner}")
    scene.control(fail=dict.fromkeys(points, number))
    await asyncio.sleep(seconds)
    scene.control(fail={})


@fault("sync slow by 10 ms")
async def slow_sync(scene: Scene) -> None:
    scene.note(f"slow sync, {scene.owner}")
    scene.control(slow={fault_points.before(fault_points.SYNC): 0.01})
    await asyncio.sleep(2.0)
    scene.control(slow={})


@fault("sync slow by 1 s")
async def slower_sync(scene: Scene) -> None:
    scene.note(f"slower sync, {scene.owner}")
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
    scene.note(f"EIO on rename, link and create, after a failed sync, {scene.owner}")
    await asyncio.sleep(0.3)
    scene.control(fail=dict.fromkeys(RENAME_POINTS, errno.EIO))
    await asyncio.sleep(scene.draw.uniform(0.2, 2.0))
    scene.control(fail={})


@fault("directory read-only")
async def read_only(scene: Scene) -> None:
    """No file can be made, none renamed; then the owner dies, and the next one cannot begin until it is over."""
    await asyncio.sleep(0)
    scene.note(f"read-only, {scene.owner}")
    scene.control(fail=dict.fromkeys(READ_ONLY_POINTS, errno.EROFS))
    await asyncio.sleep(scene.draw.uniform(0.3, 1.0))
    if scene.draw.random() < 0.6:
        signal_pid(scene.owner_pid(), signal.SIGKILL)
        await asyncio.sleep(scene.draw.uniform(0.5, 3.0))
    scene.control(fail={})


# -- clocks ------------------------------------------------------------------------------------------------------------


@fault("clock jumps")
async def clock_jumps(scene: Scene) -> None:
    for _ in range(scene.draw.randint(2, 4)):
        jump = scene.draw.choice([-1, 1]) * scene.draw.choice([5.0, 3600.0, 86_400.0 * 400])
        scene.note(f"wall clock off by {jump:.0f} s")
        scene.control(wall_s=jump)
        if scene.draw.random() < 0.4:
            signal_pid(scene.owner_pid(), signal.SIGKILL)
        await asyncio.sleep(scene.draw.uniform(0.3, 1.2))


# -- every step --------------------------------------------------------------------------------------------------------


async def _kill_at(scene: Scene, points: tuple[str, ...], *, drop: bool) -> None:
    """The owner dies exactly there; for a point of taking over, it is killed first so that it comes by."""
    point = scene.draw.choice(points)
    times = 1 if points is TAKING_POINTS else scene.draw.randint(1, 3 if point.endswith(" beat") else 20)
    scene.control(kill={"point": point, "times": times, "drop": drop})
    if points is TAKING_POINTS:
        scene.kill(scene.owner_pid(), scene.owner)
    try:
        await scene.until(scene.fired, f"the owner passes {point}", 15.0)
    except AssertionError:
        # It has no occasion in this run, a copy of nothing say.
        scene.note(f"{point} was not passed")
        point, times = fault_points.after(fault_points.APPEND), 1
        scene.control(kill={"point": point, "times": times, "drop": drop})
        await scene.until(scene.fired, f"the owner passes {point}")
    scene.note(f"{scene.owner} killed {point}, the {times}. time")
    scene.control(kill=None)


@fault("kill at a step of a write")
async def kill_at_write(scene: Scene) -> None:
    await _kill_at(scene, RUNNING_POINTS, drop=False)


@fault("kill between sync and answer")
async def kill_before_answer(scene: Scene) -> None:
    """Again and again: what was sent then is sent again to the next owner, which has it."""
    for _ in range(scene.draw.randint(2, 4)):
        await _kill_at(scene, UNANSWERED_POINTS, drop=False)


@fault("kill at a step of a takeover")
async def kill_at_takeover(scene: Scene) -> None:
    await _kill_at(scene, TAKING_POINTS, drop=False)


@fault("host forgets at a step of a write")
async def forget_at_write(scene: Scene) -> None:
    await _kill_at(scene, RUNNING_POINTS, drop=True)


@fault("host forgets during a slow sync")
async def forget_in_slow_sync(scene: Scene) -> None:
    """Whoever is told anything while the sync is under way is told too early."""
    point = fault_points.before(fault_points.SYNC)
    scene.control(
        slow={point: scene.draw.uniform(0.1, 0.4)},
        kill={"point": point, "times": scene.draw.randint(2, 8), "drop": True},
    )
    await scene.until(scene.fired, f"the owner passes {point}")
    scene.note(f"{scene.owner} killed {point}, which was slow")
    scene.control(slow={}, kill=None)


@fault("host forgets at a step of a takeover")
async def forget_at_takeover(scene: Scene) -> None:
    await _kill_at(scene, TAKING_POINTS, drop=True)
