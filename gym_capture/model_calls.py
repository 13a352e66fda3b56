"""The capture contract's functions, under the names and with the arguments of NeMo Gym 0.7's `rollouts.model_calls`.

They work without Ray on a directory at rest (which may be NeMo Gym's own), and through the live owner when there is
one, also from a process that is not connected to Ray. All but one are plain functions, which collectors call inside
running loops: what needs an owner happens in the client's own thread.
"""

from __future__ import annotations

import importlib
import logging
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gym_capture.capture_access import CaptureAccess, says_something
from gym_capture.directory.stores import open_store, reading
from gym_capture.errors import ConfigError, GymCaptureError
from gym_capture.model import record as _records
from gym_capture.model.ids import rollout_id_from_record, validate_rollout_id
from gym_capture.model.merge import RolloutEvidence, attach_capture
from gym_capture.model.metrics import aggregate
from gym_capture.model.verifiers import VerifierInvocation, resolve_verifiers, verifier_declaration
from gym_capture.storage.store import CaptureStore

logger = logging.getLogger(__name__)

CAPTURE_DRAIN_TIMEOUT_S = 10.0
"""How long quiescence is awaited unless the caller says otherwise, seconds."""

_CAPTURE_DRAIN_POLL_S = 0.05
"""How often a directory without an owner is looked at meanwhile, seconds."""

_ENABLED_KEY = "observability_enabled"
_DIRECTORY_KEY = "model_call_capture_dir"

_MOVED = {
    "ModelCallRecord": ("gym_capture.model.record", "ModelCallRecord"),
    "build_model_call_record": ("gym_capture.model.record", "build_model_call_record"),
    "extract_token_stats": ("gym_capture.model.usage", "extract_token_stats"),
    "aggregate_model_call_records": ("gym_capture.model.metrics", "aggregate"),
}


def observability_enabled_from_config(cfg: Mapping[str, Any]) -> bool:
    """The run-wide flag at the top of a configuration, alone: whether the directory is valid is not looked at."""
    return bool(cfg.get(_ENABLED_KEY, False))


def model_call_capture_dirs_from_config(cfg: Mapping[str, Any]) -> list[Path]:
    """The one capture directory when capture is enabled, else none.

    Raises:
        ConfigError: (a ValueError) it is enabled and the directory is missing, relative or no path.
    """
    if not observability_enabled_from_config(cfg):
        return []
    given = cfg.get(_DIRECTORY_KEY)
    if not given:
        raise ConfigError(
            f"{_DIRECTORY_KEY} is required when {_ENABLED_KEY} is true. Nothing is captured; give an absolute path "
            "that every node sees."
        )
    if not isinstance(given, str | os.PathLike):
        raise ConfigError(
            f"{_DIRECTORY_KEY} must be a path, not {given!r} (a {type(given).__name__}). Nothing is captured; give an "
            "absolute path that every node sees."
        )
    directory = Path(given)
    if not directory.is_absolute():
        raise ConfigError(
            f"{_DIRECTORY_KEY} must be absolute, not {str(given)!r}: workers on other nodes have other working "
            "directories. Nothing is captured; give an absolute path."
        )
    return [directory]


def clear_model_call_captures_for_rollouts(
    records: Iterable[Mapping[str, Any]], capture_dirs: Sequence[str | Path]
) -> None:
    """Forget what was captured under these records' ids; records without an id are passed over.

    Raises:
        InvalidRolloutId: nothing was cleared.
        OwnerUnavailable: a directory has a live owner that cannot be reached.
        OSError: a directory cannot be written.
    """
    ids = list(dict.fromkeys(found for record in records if (found := rollout_id_from_record(record)) is not None))
    if ids:
        for directory in capture_dirs:
            if Path(directory).exists():
                CaptureAccess(directory).clear(ids)


async def await_model_call_capture_quiescence(
    rollout_id: str,
    capture_dirs: Sequence[str | Path],
    timeout_s: float = CAPTURE_DRAIN_TIMEOUT_S,
    poll_s: float = _CAPTURE_DRAIN_POLL_S,
) -> bool:
    """Wait until no claim of the rollout is outstanding in any of the directories.

    Args:
        timeout_s: how long in all.
        poll_s: how often a directory without an owner is looked at; a live owner tells without being asked again.

    Returns:
        False once the time is over, or when a live owner could not be reached until then.

    Raises:
        InvalidRolloutId: it cannot be the id of a rollout.
    """
    validate_rollout_id(rollout_id)
    for directory in capture_dirs:
        if not await CaptureAccess(directory).quiesce(rollout_id, timeout_s, poll_s):
            return False
    return True


def merge_model_call_capture_into_record(
    record: dict[str, Any], capture_dirs: Sequence[str | Path], include_payloads: bool = False
) -> dict[str, Any]:
    """Attach what was captured of a rollout to its record, in place, and return the record.

    Response and reward are not touched. It never waits for claims: what is outstanding is a gap. What cannot be read
    is a gap too.

    Raises:
        InvalidRolloutId: the record's id cannot be one.
    """
    rollout_id = rollout_id_from_record(record)
    if rollout_id is None or not capture_dirs:
        return record
    return attach_capture(record, _evidence(rollout_id, capture_dirs, include_payloads), include_payloads)


def _evidence(rollout_id: str, capture_dirs: Sequence[str | Path], include_payloads: bool) -> RolloutEvidence:
    """That of the first directory that knows the rollout; unreadable when none does and one cannot be read."""
    nothing = RolloutEvidence(rollout_id, [])
    for directory in capture_dirs:
        try:
            evidence = CaptureAccess(directory).evidence(rollout_id, include_payloads)
        except (GymCaptureError, OSError) as error:
            logger.warning("the capture of rollout %s in %s cannot be read: %s", rollout_id, directory, error)
            nothing.unreadable = True
            continue
        if says_something(evidence):
            return evidence
    return nothing


def read_model_call_records(store: CaptureStore, rollout_id: str) -> list[_records.ModelCallRecord]:
    """The rollout's records in durable append order.

    Raises:
        DamagedLog: one of them cannot be read.
    """
    with reading(store):
        store.read(rollout_id)
        indexed, _ = store.read_indexed(rollout_id)
    return [_records.build_model_call_record(exchange, index) for index, exchange in indexed]


def read_available_model_call_records(
    store: CaptureStore, rollout_id: str
) -> tuple[list[_records.ModelCallRecord], int]:
    """The rollout's records that can be read, in durable append order, and how many cannot."""
    records, _, damaged = _read_capture_records(store, rollout_id)
    return records, damaged


def aggregate_model_call_metrics(store: CaptureStore, rollout_id: str) -> dict[str, Any]:
    """Token counts and latencies of the rollout's calls, summed; None where no call knows one.

    Raises:
        DamagedLog: a record cannot be read.
    """
    return aggregate([record.model_dump() for record in read_model_call_records(store, rollout_id)])


def _read_capture_records(
    store: CaptureStore, rollout_id: str
) -> tuple[list[_records.ModelCallRecord], dict[str, VerifierInvocation], int]:
    """The readable records, the verifier invocations that they name by id, and how many records are damaged."""
    with reading(store):
        indexed, damaged = store.read_indexed(rollout_id)
    declared = [found for _, exchange in indexed if (found := verifier_declaration(exchange)) is not None]
    verifiers, _ = resolve_verifiers(declared)
    return [_records.build_model_call_record(exchange, index) for index, exchange in indexed], verifiers, damaged


def _store_for_rollout(rollout_id: str, capture_dirs: Sequence[str | Path]) -> CaptureStore | None:
    """The store of the first directory that knows this rollout, as it is now."""
    for directory in capture_dirs:
        if not Path(directory).exists():
            continue
        store = open_store(directory)
        with reading(store):
            if store.knows(rollout_id):
                return store
    return None


def __getattr__(name: str) -> Any:
    """Names that used to live here."""
    moved = _MOVED.get(name)
    if moved is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = moved
    warnings.warn(
        f"gym_capture.model_calls.{name} is deprecated: import {attribute} from {module}.",
        DeprecationWarning,
        stacklevel=2,
    )
    return getattr(importlib.import_module(module), attribute)
