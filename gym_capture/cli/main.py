"""`gym-capture`: the commands, their options, and what their help says."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from gym_capture.cli import reading
from gym_capture.cli.exits import Exit, command
from gym_capture.cli.keeping import prune, seal
from gym_capture.cli.options import Debug, Dir, DirOption, Json, given_directory, local_directory, one_directory
from gym_capture.cli.spans import spans
from gym_capture.cli.sql import sql
from gym_capture.cli.transfer import export, import_
from gym_capture.errors import ConfigError

app = typer.Typer(
    name="gym-capture",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="""
Collect RL rollouts on Ray and keep every model call that they make.

Start with `gym-capture run configs/local.yaml`: it needs no cluster and no network.

Exit status: 0 fine, 1 something failed, 2 wrong usage, configuration or input, 3 evidence is missing and
`collect.require_complete` is set, or `check` misses some, 4 `verify` or `check` found damage, 130 and 143 stopped by
Ctrl-C and SIGTERM.
""",
)

Name = Annotated[str | None, typer.Option("--name", help="The owner's actor name.", show_default=False)]
Namespace = Annotated[str, typer.Option("--namespace", help="The owner's Ray namespace, with --name.")]
Address = Annotated[
    str, typer.Option("--address", help="The Ray cluster to look in, unless a directory finds the owner without Ray.")
]


@app.command()
def run(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="The run, a YAML file.", show_default=False)],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]", help="Keys of the configuration, each set anew.", show_default=False),
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """
    Collect rollouts: every row of `collect.input` is rolled out on Ray workers, and its merged record appended to
    `collect.output`.

    A run that was stopped or killed goes on where it was: run the same command again. Rows that are finished are
    skipped, failed ones are tried again as their next attempt.

    `gym-capture run configs/local.yaml`

    `gym-capture run configs/cluster.yaml collect.concurrency=256 collect.limit=1000`

    `gym-capture run my.yaml collect.input=rows.jsonl collect.output=out.jsonl collect.rollout=my.agent:rollout`

    `gym-capture run configs/local.yaml --json > summary.json`
    """
    from gym_capture.cli.run import run_command

    with command(as_json=as_json, debug=debug) as screen:
        status = run_command(config, overrides or [], screen)
    raise typer.Exit(status)


@app.command()
def proxy(
    config: Annotated[Path, typer.Option("--config", help="The run, a YAML file.", show_default=False)],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]", help="Keys of the configuration, each set anew.", show_default=False),
    ] = None,
    upstream: Annotated[
        str | None,
        typer.Option("--upstream", help="The model server, without /v1: proxy.upstream.", show_default=False),
    ] = None,
    host: Annotated[
        str | None, typer.Option("--host", help="The address to listen on: proxy.host.", show_default=False)
    ] = None,
    port: Annotated[int | None, typer.Option("--port", help="0: any free one: proxy.port.", show_default=False)] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """
    Capture at a model server that nobody can change: a proxy in front of it, until Ctrl-C or SIGTERM.

    Requests under `/ng-rollout/<rollout id>/` are captured for that rollout and forwarded without this prefix; all
    others are forwarded as they are. The owner of `model_call_capture_dir` is joined where one is live (without Ray),
    else started as the configuration says, and ended with the proxy. Told to stop, it lets running requests finish for
    `proxy.drain_s`; a second signal ends it at once.

    `gym-capture proxy --config my.yaml --upstream http://10.0.0.7:8000 --port 8100`
    """
    from gym_capture.cli.proxy import proxy_command

    with command(as_json=as_json, debug=debug) as screen:
        status = proxy_command(config, overrides or [], upstream, host, port, screen)
    raise typer.Exit(status)


@app.command()
def status(
    directory: Dir = None,
    dir_option: DirOption = None,
    name: Name = None,
    namespace: Namespace = "gym_capture",
    address: Address = "auto",
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """
    Show what a run's owner is doing: open claims and their ages, clients, rollouts, late rows, the log.

    With a directory it needs no Ray; where no owner is live it says what the directory holds.

    `gym-capture status runs/local/model-calls`

    `gym-capture status --name capture-42`
    """
    from gym_capture.cli.opened import looking
    from gym_capture.cli.owner import status_of_owner
    from gym_capture.cli.tables import directory_view, status_view

    with looking(as_json=as_json, debug=debug) as screen:
        found = status_of_owner(local_directory(one_directory(directory, dir_option)), name, namespace, address)
        if as_json:
            screen.document(found)
        else:
            screen.out.print(directory_view(found) if found["owner"] == "none" else status_view(found))


@app.command()
def verify(
    directory: Dir = None,
    dir_option: DirOption = None,
    repair: Annotated[
        bool, typer.Option("--repair", help="First mend a directory at rest; what is replaced is kept in quarantine/.")
    ] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """
    Read everything in a capture directory, every payload's checksum included, without Ray and without an owner.

    Reports what is damaged (exit status 4), torn or cut off (which loses nothing that was acknowledged), which
    rollouts are incomplete, and rows that landed after their rollout was merged.

    With `--repair` a directory without a live owner is mended first: damaged bytes are put aside in `quarantine/`,
    never removed, and lost small files are restored. What was lost stays lost, counted and marked.

    `gym-capture verify runs/local/model-calls`
    """
    from gym_capture.cli.opened import looking, writing
    from gym_capture.cli.tables import verify_view
    from gym_capture.cli.verification import repaired, verification
    from gym_capture.storage.posix_files import PosixFiles
    from gym_capture.storage.remote.run_uri import is_uri
    from gym_capture.storage.run_marker import require_capture_directory
    from gym_capture.storage.store import CaptureStore

    with looking(as_json=as_json, debug=debug, judges=True) as screen:
        given = one_directory(directory, dir_option)
        if given is None and repair:
            raise ConfigError("which directory is to be repaired? Nothing was changed; give it as DIR or --dir DIR.")
        given = given_directory(given, None)
        mended = None
        if repair or not is_uri(given):
            path = local_directory(given).absolute()
            require_capture_directory(PosixFiles(path))
            if repair:
                safe = "Nothing that can be read was removed; run it again, it goes on."
                with writing(f"repairing {path}", safe):
                    mended = repaired(path)
        found = verification(CaptureStore(given if is_uri(given) else path, checkpoints=False))
        if mended is not None:
            found["repair"] = mended
        if as_json:
            screen.document(found)
        else:
            screen.out.print(verify_view(found))
        if not found["sound"]:
            raise typer.Exit(Exit.DAMAGE)


for look in (reading.ls, reading.show, reading.stats, reading.tail, reading.diff, reading.check, spans):
    app.command()(look)


@app.command()
def view(
    directory: Dir = None,
    dir_option: DirOption = None,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="The port of 127.0.0.1 to listen on; 0: any free one.")
    ] = 0,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")] = True,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """
    Look at a capture directory in a browser: the run with its plots, rollouts as a list, one as a timeline and a
    conversation, two compared; live while the run goes on.

    It listens on this machine alone, changes nothing, and lets in who knows the address that it prints. Ctrl-C ends it.

    `gym-capture view runs/local/model-calls`

    `gym-capture view DIR --port 8123 --no-browser`

    `gym-capture view s3://bucket/runs/7`
    """
    from gym_capture.cli.opened import looking
    from gym_capture.cli.view import view_command

    with looking(as_json=as_json, debug=debug) as screen:
        view_command(one_directory(directory, dir_option), port, browser, screen)


@app.command()
def stop(
    directory: Dir = None,
    dir_option: DirOption = None,
    name: Name = None,
    namespace: Namespace = "gym_capture",
    address: Address = "auto",
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """
    End a run's owner cleanly. What was acknowledged is on disk; the directory can be read, and started again.

    `gym-capture stop /shared/runs/42/model-calls`

    `gym-capture stop --name capture-42`
    """
    from gym_capture.cli.opened import looking
    from gym_capture.cli.owner import stop_owner

    with looking(as_json=as_json, debug=debug) as screen:
        stopped = stop_owner(local_directory(one_directory(directory, dir_option)), name, namespace, address)
        if as_json:
            screen.document(stopped)
        else:
            screen.out.print("stopped" if stopped["stopped"] else "no owner is live", soft_wrap=True)


app.command()(sql)
app.command()(export)
app.command("import")(import_)
app.command()(seal)
app.command()(prune)


@app.command()
def version(as_json: Json = False) -> None:
    """
    Show the versions of gym-capture and of what it stands on.
    """
    with command(as_json=as_json, debug=False) as screen:
        found = _versions()
        if as_json:
            screen.document(found)
        else:
            screen.out.print("\n".join(f"{name} {number}" for name, number in found.items()))


def _versions() -> dict[str, Any]:
    import platform
    from importlib import metadata

    from gym_capture import __version__

    return {"gym-capture": __version__, "ray": metadata.version("ray"), "python": platform.python_version()}


def main() -> None:
    """The console script."""
    app()
