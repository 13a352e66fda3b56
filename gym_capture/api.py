"""`start` and `connect`: the two ways to a `CaptureClient`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gym_capture.client.client import CaptureClient
from gym_capture.config import CaptureConfig, CaptureSettings, RayConfig, load_config
from gym_capture.directory.locate import owner_of
from gym_capture.errors import OwnerNotFound, RayUnavailable
from gym_capture.model.client_settings import ClientSettings
from gym_capture.model.shards import run_actor_name
from gym_capture.reach.disabled import disabled_client
from gym_capture.reach.locators import find_actor, named_actors, ray_is_initialised
from gym_capture.reach.opening import open_client
from gym_capture.reach.source import Source, TransportChoice, client_options
from gym_capture.storage.posix_files import PosixFiles
from gym_capture.storage.run_layout import run_marker

DIRECTORY_VARIABLE = "GYM_CAPTURE_DIR"
NAME_VARIABLE = "GYM_CAPTURE_NAME"
"""Where `connect` looks when it is given neither a directory nor a name."""

RAY_PATIENCE_VARIABLE = "RAY_raylet_start_wait_time_s"
"""Ray's own: for how many seconds it waits for the node that it starts to be known. Its log names it, too."""

_DEFAULTS = CaptureSettings()
_ASK_S = 30.0


def start(
    config: CaptureConfig | Mapping[str, Any] | str | Path,
    *,
    overrides: Sequence[str] = (),
    takeover: bool = False,
) -> CaptureClient:
    """Get or create a run's owner. Blocks until it serves.

    Ray is initialised as `config.ray` says, unless this process is connected already.

    Args:
        config: a configuration, a mapping, or the path of a YAML file.
        overrides: `key.path=value` strings; later ones win.
        takeover: fence another live owner of the directory (a frozen one, say).

    Returns:
        The owner's client. With `observability_enabled: false` one that captures nothing (`reach.disabled`).

    Raises:
        ConfigError: the configuration cannot work.
        CaptureDirectoryError: the directory cannot be made or used.
        NameTaken: the actor's name serves another run.
        SettingsDiffer: the run's owner is there, with other settings; `keys` names them.
        DirectoryHeld: another live owner holds the directory.
        OwnerUnavailable: no owner came up in time.
    """
    loaded = load_config(config, overrides)
    if not loaded.observability_enabled:
        return disabled_client()
    directory = str(loaded.directory)
    from gym_capture.actor.launch import launch

    initialise_ray(loaded.ray)
    launched = launch(loaded, takeover=takeover)
    spec = launched.spec
    options = client_options(spec.run, spec.client)
    source = Source(spec.run, directory, spec.name, spec.namespace, loaded.capture.transport, options, spec.shards)
    return open_client(source, new_owner=any(each.created for each in (launched, *launched.further)))


def initialise_ray(config: RayConfig) -> None:
    """Connect this process to Ray as the configuration says, unless it is connected already.

    `local` starts an embedded Ray with this process; anything else joins the cluster that is there.

    Raises:
        RayUnavailable: that did not come to pass.
    """
    import ray

    if ray.is_initialized():
        return
    runtime_env = config.runtime_env or None
    try:
        if config.address == "local":
            ray.init(address="local", num_cpus=config.num_cpus, runtime_env=runtime_env, include_dashboard=False)
        else:
            ray.init(address=config.address, runtime_env=runtime_env)
    except Exception as error:  # Ray raises ConnectionError, RuntimeError, ValueError and plain Exception alike
        told = str(error).strip().partition("\n")[0] or type(error).__name__
        if config.address == "local":
            what = f"an embedded Ray did not start ({told})"
            cure = (
                "on a machine that is loaded it starts too slowly: free processors and memory, or let Ray wait longer "
                f"({RAY_PATIENCE_VARIABLE}=120 in the environment), then run again."
            )
        else:
            what = f"no Ray answered at {config.address} ({told})"
            cure = "see that `ray status` works from this machine and correct ray.address, then run again."
        raise RayUnavailable(f"{what}. Nothing was captured or changed; {cure}") from error


def connect(
    capture_dir: str | Path | None = None,
    name: str | None = None,
    namespace: str | None = None,
    transport: TransportChoice = "auto",
) -> CaptureClient:
    """Find a run's owner.

    By its directory (also in a process that is not connected to Ray), by its actor's name, by the environment
    (`GYM_CAPTURE_DIR`, `GYM_CAPTURE_NAME`), or as the only one of its namespace. The client goes by the run's own
    settings (patience, sizes, redaction), which its owner tells.

    Args:
        capture_dir: the run's capture directory.
        name: the actor's name; Ray must be initialised.
        namespace: the actor's Ray namespace; None: `gym_capture`.
        transport: `auto`: the stream, or Ray calls where its port cannot be reached; or one of the two.

    Raises:
        OwnerNotFound: there is no live owner; `candidates` lists those that are there.
        CaptureDirectoryError: the directory cannot be read here.
        MissingRunMarker: the directory is not (or not the mount of) a run's.
    """
    space = namespace or _DEFAULTS.namespace
    if capture_dir is None and name is None:
        capture_dir = os.environ.get(DIRECTORY_VARIABLE) or None
        name = os.environ.get(NAME_VARIABLE) or None if capture_dir is None else None
    if capture_dir is not None:
        return open_client(_source_by_directory(Path(capture_dir), space, transport))
    if not ray_is_initialised():
        wanted = f"actor {name}" if name else "an owner"
        raise OwnerNotFound(
            f"{wanted} cannot be looked for: this process is not connected to Ray. Nothing was changed; give "
            f"capture_dir (or set {DIRECTORY_VARIABLE}), or call ray.init() first.",
            candidates=[],
        )
    return open_client(_source_by_name(name or _only_one(space), space, transport))


def _source_by_directory(directory: Path, namespace: str, transport: TransportChoice) -> Source:
    owner = owner_of(directory)
    if owner is None:
        candidates = named_actors(namespace) if ray_is_initialised() else []
        raise OwnerNotFound(
            f"{directory} has no live owner{_list(candidates, namespace)}. What it holds can be read with "
            "CaptureStore; start() an owner to write to it.",
            candidates=candidates,
        )
    identity = owner.identity
    shards = run_marker(PosixFiles(directory)).shards
    options = client_options(owner.run, owner.client)
    name = _run_name(identity.name, shards) or None
    return Source(owner.run, str(directory), name, identity.namespace or namespace, transport, options, shards)


def _source_by_name(name: str, namespace: str, transport: TransportChoice) -> Source:
    import ray

    actor = find_actor(name, namespace)
    if not hasattr(actor, "settings"):
        raise OwnerNotFound(
            f"actor {name} in namespace {namespace} is no capture owner. Nothing was changed; give another name.",
            candidates=[each for each in named_actors(namespace) if each != name],
        )
    told = ray.get(actor.settings.remote(), timeout=_ASK_S)
    options = client_options(told["run"], told.get("client", ClientSettings()))
    shards = told.get("shards", 1)
    run_name = _run_name(name, shards)
    return Source(told["run"], told["directory"], run_name, namespace, transport, options, shards)


def _run_name(name: str, shards: int) -> str:
    """The run's name, where any of its shards' is given."""
    return name if shards == 1 else run_actor_name(name)


def _only_one(namespace: str) -> str:
    candidates = named_actors(namespace)
    if len(candidates) != 1:
        count = "several live owners" if candidates else "no live owner"
        raise OwnerNotFound(
            f"namespace {namespace} has {count}{_list(candidates, namespace)}. Nothing was changed; give capture_dir "
            f"or name, or set {DIRECTORY_VARIABLE} or {NAME_VARIABLE}.",
            candidates=candidates,
        )
    return candidates[0]


def _list(candidates: list[str], namespace: str) -> str:
    return f" (in namespace {namespace}: {', '.join(candidates)})" if candidates else ""
