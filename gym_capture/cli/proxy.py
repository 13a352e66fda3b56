"""`gym-capture proxy`: one capturing proxy in front of a model server, until it is told to stop."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from rich.console import Group
from rich.text import Text

from gym_capture import api
from gym_capture.asgi.proxy_address import addresses
from gym_capture.asgi.proxy_upstream import parse_upstream
from gym_capture.cli.exits import Exit, Screen
from gym_capture.cli.tables import pairs
from gym_capture.client.client import CaptureClient
from gym_capture.config import CaptureConfig, load_config
from gym_capture.directory.locate import Liveness, liveness, owner_of
from gym_capture.errors import ConfigError, GymCaptureError, SettingsDiffer
from gym_capture.extras import require_extra
from gym_capture.reach.disabled import disabled_client
from gym_capture.reading.plain_text import plain_line
from gym_capture.storage.owner_file import OwnerInfo

STOP_S = 10.0


def proxy_command(
    path: Path,
    overrides: Sequence[str],
    upstream: str | None,
    host: str | None,
    port: int | None,
    screen: Screen,
) -> Exit:
    """Serve, say where, and leave nothing open at the end."""
    config = load_config(path, [*overrides, *_as_overrides(upstream=upstream, host=host, port=port)])
    if config.proxy.upstream is None:
        raise ConfigError(
            "which model server is the proxy for? Nothing was started; give --upstream URL, or set proxy.upstream."
        )
    target = parse_upstream(config.proxy.upstream)
    require_extra("proxy", "a capturing proxy")
    from gym_capture.asgi.proxy_server import run_in_loop, serve

    listen_at, reached_at = addresses(config.proxy.host)
    started_ray = not _ray_runs()
    capture, started_owner = _owner(config, screen)

    def on_ready(url: str) -> None:
        tell(screen, config, url, target.url)

    try:
        whole = run_in_loop(serve(config.proxy, capture, listen_at, reached_at=reached_at, on_ready=on_ready))
    finally:
        if started_owner:
            _stop(config, screen, stop_ray=started_ray)
        else:
            capture.sync.close(STOP_S)
    return Exit.OK if whole else Exit.ERROR


def tell(screen: Screen, config: CaptureConfig, url: str, upstream: str) -> None:
    """Where it listens, and how an SDK finds it."""
    prefix = f"{url}/ng-rollout/<rollout id>"
    captures = str(config.directory) if config.observability_enabled else None
    if screen.as_json:
        screen.document(
            {
                "url": url,
                "upstream": upstream,
                "capture_dir": captures,
                "openai_base_url": f"{prefix}/v1",
                "anthropic_base_url": prefix,
                "pid": os.getpid(),
            }
        )
        return
    rows = [
        ("proxy", url),
        ("upstream", upstream),
        ("captures", captures or "off (observability_enabled is false)"),
        ("openai", f'OpenAI(base_url="{prefix}/v1")'),
        ("anthropic", f'Anthropic(base_url="{prefix}")'),
    ]
    hint = "<rollout id>~<generation> instead ties a call to its generation. Ctrl-C or SIGTERM drains and ends."
    screen.out.print(Group(pairs(rows), Text(hint)), soft_wrap=True)
    screen.stdout.flush()


def _as_overrides(**options: str | int | None) -> list[str]:
    return [f"proxy.{name}={json.dumps(value)}" for name, value in options.items() if value is not None]


def _owner(config: CaptureConfig, screen: Screen) -> tuple[CaptureClient, bool]:
    """A client of the run's owner, and whether this call started that. A live one is found without Ray."""
    if not config.observability_enabled:
        return disabled_client(), False
    directory = config.directory
    if directory.is_dir() and liveness(directory) is not Liveness.AT_REST:
        owner = owner_of(directory)
        if owner is not None:
            _check_redaction(config, owner)
            _warn_of_others(config, owner, screen)
            settings = config.capture
            return api.connect(directory, namespace=settings.namespace, transport=settings.transport), False
    where = plain_line(str(directory))
    screen.err.print(f"starting an owner for {where}; with Ray this may take a minute", markup=False, soft_wrap=True)
    return api.start(config), True


def _check_redaction(config: CaptureConfig, owner: OwnerInfo) -> None:
    """The running owner tells its clients what to take out: what only this configuration names would stay."""
    wanted, told = config.capture.for_clients().redact, owner.client.redact
    if {*wanted.paths} - {*told.paths} or {*wanted.patterns} - {*told.patterns}:
        raise SettingsDiffer(
            f"the owner of {config.directory} runs without some of this configuration's capture.redact. Nothing was "
            "started; give it to the run that the owner belongs to, or take it out here.",
            keys=["capture.redact"],
        )


def _warn_of_others(config: CaptureConfig, owner: OwnerInfo, screen: Screen) -> None:
    """Clients go by what the owner tells; what this configuration says otherwise has no effect."""
    here, there = config.capture.for_clients(), owner.client
    others = [
        f"capture.{name} ({getattr(there, name):g} there, {getattr(here, name):g} here)"
        for name in here.__struct_fields__
        if name != "redact" and getattr(here, name) != getattr(there, name)
    ]
    if others:
        screen.err.print(
            f"the running owner's settings hold: {', '.join(others)}. Give them to the run that it belongs to.",
            soft_wrap=True,
        )


def _ray_runs() -> bool:
    from gym_capture.reach.locators import ray_is_initialised

    return ray_is_initialised()


def _stop(config: CaptureConfig, screen: Screen, *, stop_ray: bool) -> None:
    """End the owner that was started here, and the Ray that came with it."""
    try:
        with api.connect(capture_dir=config.directory).sync as owner:
            owner.stop(timeout_s=STOP_S)
    except GymCaptureError as error:
        screen.err.print(f"the owner could not be stopped ({error}); what it acknowledged is on disk", soft_wrap=True)
    finally:
        if stop_ray:
            import ray

            ray.shutdown()
