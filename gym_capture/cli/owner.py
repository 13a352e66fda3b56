"""`status` and `stop`: talking to a run's owner, or saying that there is none."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from gym_capture.api import DIRECTORY_VARIABLE, NAME_VARIABLE, connect, initialise_ray
from gym_capture.client.client import CaptureClient
from gym_capture.config import RayConfig
from gym_capture.directory.locate import Liveness, liveness
from gym_capture.errors import OwnerNotFound, RayUnavailable
from gym_capture.storage import names
from gym_capture.storage.owner_file import last_owner
from gym_capture.storage.posix_files import PosixFiles
from gym_capture.storage.run_layout import shards_of
from gym_capture.storage.run_marker import require_capture_directory
from gym_capture.storage.store import CaptureStore

ANSWER_S = 10.0


def status_of_owner(directory: Path | None, name: str | None, namespace: str, address: str) -> dict[str, Any]:
    """What a live owner says of itself; of a directory at rest, how its last owner ended and what it holds.

    Raises:
        MissingRunMarker: the directory is no capture directory.
        OwnerNotFound: there is none, and no directory was given either.
        OwnerUnavailable: it is live and does not answer.
    """
    directory = _or_of_the_environment(directory, name)
    if directory is not None:
        require_capture_directory(PosixFiles(directory.absolute()))
        if liveness(directory.absolute()) is Liveness.AT_REST:
            return _at_rest(directory.absolute())
    client = _connected(directory, name, namespace, address)
    with client.sync as owner:
        stats = owner.stats(timeout_s=ANSWER_S)
    return {"owner": "live", "transport": client.transport_name, **stats}


def stop_owner(directory: Path | None, name: str | None, namespace: str, address: str) -> dict[str, Any]:
    """End the owner. `stopped` is False when the directory had no live one.

    Raises:
        OwnerNotFound: there is none of that name.
        OwnerUnavailable: it is live and does not answer.
    """
    directory = _or_of_the_environment(directory, name)
    if directory is not None and liveness(directory.absolute()) is Liveness.AT_REST:
        return {"stopped": False}
    with _connected(directory, name, namespace, address).sync as owner:
        owner.stop(timeout_s=ANSWER_S)
    return {"stopped": True}


def _connected(directory: Path | None, name: str | None, namespace: str, address: str) -> CaptureClient:
    if directory is None:
        if address == "local":
            raise OwnerNotFound("--address local would start a Ray of its own; give auto, host:port, or --dir")
        try:
            initialise_ray(RayConfig(address=address))
        except RayUnavailable as error:
            why = error.__cause__ or error
            raise OwnerNotFound(
                f"no Ray cluster at {address} ({why}). Give --dir, which finds the owner without Ray, or --address."
            ) from error
    try:
        return connect(capture_dir=None if directory is None else directory.absolute(), name=name, namespace=namespace)
    except OwnerNotFound as error:
        if directory is not None or name is not None or os.environ.get(NAME_VARIABLE):
            raise
        there = error.fields.get("candidates") or []
        found = f"several live owners ({', '.join(there)})" if there else "no live owner"
        raise OwnerNotFound(
            f"namespace {namespace} has {found}. Nothing was changed; give --dir or --name (and --namespace), or set "
            f"{DIRECTORY_VARIABLE} or {NAME_VARIABLE}.",
            candidates=there,
        ) from error


def _or_of_the_environment(directory: Path | None, name: str | None) -> Path | None:
    """What `connect` would take, known before Ray is asked for."""
    given = os.environ.get(DIRECTORY_VARIABLE) if directory is None and name is None else None
    return Path(given) if given else directory


def _at_rest(directory: Path) -> dict[str, Any]:
    """`log` is None where there is none and what was captured lies in datasets or in NeMo Gym's files."""
    store = CaptureStore(directory)
    rollouts = store.standings()
    lasts = [last_owner(files) for files in shards_of(PosixFiles(directory))]
    owners = [None if last is None else last._asdict() for last in lasts]
    ended: dict[str, Any] = {"last_owner": owners[0]}
    if len(owners) > 1:
        ended = {"shards": [{"shard": shard, "last_owner": owner} for shard, owner in enumerate(owners)]}
    sealed = store.datasets()
    listed = set(PosixFiles(directory).names())
    beside = sum(names.nemo_gym_file(each) in listed for each in names.nemo_gym_rollouts_in(listed))
    report = store.report
    elsewhere = (sealed or beside) and not report.segments and not report.damaged
    return {
        "owner": "none",
        **ended,
        "directory": store.directory,
        "rollouts": len(rollouts),
        "incomplete_rollouts": sum(1 for each in rollouts if each.reasons is not None),
        "outstanding": store.outstanding(),
        "sealed": [{"folder": each.folder, "files": each.files, "bytes": each.size} for each in sealed],
        "nemo_gym_files": beside,
        "log": None if elsewhere else report.summary(),
    }
