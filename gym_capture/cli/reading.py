"""The commands that look at what was captured: `ls`, `show`, `stats`, `tail`, `diff`, `check`.

None of them needs Ray or an owner, and none changes anything. They work on a live directory, one at rest, one with
damage, and one that NeMo Gym wrote.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.live import Live

from gym_capture.cli import pulse
from gym_capture.cli.exits import Exit, Screen
from gym_capture.cli.opened import (
    capture_files,
    complete_rollout,
    looking,
    open_directory,
    require_rollout,
    warn_of_damage,
)
from gym_capture.cli.options import Debug, Dir, DirOption, Json, directory_and_ids, one_directory, one_of
from gym_capture.reading.conversation import read_conversation
from gym_capture.reading.difference import difference_of
from gym_capture.reading.health import check_health, expected_ids
from gym_capture.reading.new_calls import NewCall, NewCalls
from gym_capture.reading.plain_json import plain_json
from gym_capture.reading.rollout_overview import SORT_KEYS, OverviewQuery, RolloutOverview
from gym_capture.reading.rollout_status import STATUSES
from gym_capture.reading.run_stats import run_stats
from gym_capture.storage.store import CaptureStore

Every = Annotated[float, typer.Option("--every", min=0.1, help="Seconds between two looks.")]
JsonLines = Annotated[bool, typer.Option("--json", help="A JSON document a line on stdout; all else goes to stderr.")]


def ls(
    directory: Dir = None,
    dir_option: DirOption = None,
    text: Annotated[str, typer.Option("--text", help="Only ids that have this in them.", show_default=False)] = "",
    model: Annotated[str, typer.Option("--model", help="Only where such a model answered.", show_default=False)] = "",
    status: Annotated[
        str | None,
        typer.Option("--status", help=f"Only of this status: {', '.join(STATUSES)}.", autocompletion=lambda: STATUSES),
    ] = None,
    errors: Annotated[bool, typer.Option("--errors", help="Only with a failed call.")] = False,
    gaps: Annotated[bool, typer.Option("--gaps", help="Only with a gap.")] = False,
    with_open: Annotated[bool, typer.Option("--open", help="Only with an open claim.")] = False,
    sort: Annotated[
        str, typer.Option("--sort", help=f"By what: {', '.join(SORT_KEYS)}.", autocompletion=lambda: SORT_KEYS)
    ] = "id",
    descending: Annotated[bool, typer.Option("--descending", help="The largest first.")] = False,
    limit: Annotated[int, typer.Option("--limit", min=0, help="Rows of the page; 0: all.")] = 50,
    offset: Annotated[int, typer.Option("--offset", min=0, help="Rows before the page.")] = 0,
    live: Annotated[bool, typer.Option("--live", help="Show it anew until Ctrl-C; with --json a page a line.")] = False,
    every: Every = 1.0,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """
    List the rollouts of a capture directory, a page at a time, live or at rest.

    Listing by id, calls or open claims reads the records of the rollouts that are shown; --model, --status, --errors,
    --gaps and the other orders read those of all.

    `gym-capture ls runs/local/model-calls`

    `gym-capture ls DIR --gaps --sort errors --descending`

    `gym-capture ls DIR --open --live`
    """
    with looking(as_json=as_json, debug=debug) as screen:
        query = OverviewQuery(
            text=text,
            model=model,
            status=None if status is None else one_of(STATUSES, status, "--status"),
            errors=errors,
            gaps=gaps,
            open=with_open,
            sort=one_of(SORT_KEYS, sort, "--sort"),
            descending=descending,
            offset=offset,
            limit=limit or None,
        )
        store = open_directory(one_directory(directory, dir_option))
        overview = RolloutOverview(store)
        if live:
            _live(screen, store, overview, query, every)
            return
        page = overview.page(query)
        if as_json:
            screen.document(plain_json(page))
        else:
            from gym_capture.cli.overview_view import page_view

            screen.out.print(page_view(page, screen.out.width))
        warn_of_damage(screen, store)


def _live(screen: Screen, store: CaptureStore, overview: RolloutOverview, query: OverviewQuery, every: float) -> None:
    from gym_capture.cli.overview_view import page_view

    warn = _warning(screen, store)
    with Live(console=screen.out, auto_refresh=False, transient=False) as shown:
        try:
            while True:
                page = overview.page(query)
                if screen.as_json:
                    screen.line(plain_json(page))
                elif screen.out.is_terminal:
                    shown.update(page_view(page, screen.out.width), refresh=True)
                else:
                    screen.out.print(page_view(page, screen.out.width))
                warn()
                if not pulse.wait(every):
                    return
                store.refresh()
        except KeyboardInterrupt:
            return  # which is how it ends


def _warning(screen: Screen, store: CaptureStore) -> Callable[[], None]:
    """What a command that looks on calls at each look: it warns of damage when there is some for the first time."""
    warned = False

    def warn() -> None:
        nonlocal warned
        if not warned and store.report.damaged:
            warned = True
            warn_of_damage(screen, store)

    return warn


def show(
    words: Annotated[
        list[str],
        typer.Argument(metavar="[DIR] ROLLOUT", autocompletion=complete_rollout, show_default=False),
    ],
    dir_option: DirOption = None,
    full: Annotated[bool, typer.Option("--full", help="Every line of every message, not its first ones.")] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """
    Show a rollout as a conversation: what each call added to the history, what was answered, tool calls and results,
    reasoning, times, failures, and what is missing.

    Calls that ran side by side, and histories that were cut, summed up or edited, are said to be so. What captured text
    would do to a terminal is written out.

    `gym-capture show runs/local/model-calls 7-0`

    `gym-capture show --dir DIR 7-0 --full`
    """
    with looking(as_json=as_json, debug=debug) as screen:
        given, [rollout_id] = directory_and_ids(words, dir_option, 1)
        store = open_directory(given)
        conversation = read_conversation(store, require_rollout(store, rollout_id))
        if as_json:
            screen.document(plain_json(conversation))
        else:
            from gym_capture.cli.conversation_view import conversation_view

            screen.out.print(conversation_view(conversation, full=full))
        warn_of_damage(screen, store)


def stats(directory: Dir = None, dir_option: DirOption = None, as_json: Json = False, debug: Debug = False) -> None:
    """
    Show a run in figures: calls, tokens by model, latency and time to first token, errors by category, gaps by code.

    `gym-capture stats runs/local/model-calls`
    """
    with looking(as_json=as_json, debug=debug) as screen:
        store = open_directory(one_directory(directory, dir_option))
        found = run_stats(store)
        if as_json:
            screen.document(plain_json(found))
        else:
            from gym_capture.cli.overview_view import stats_view

            screen.out.print(stats_view(found))
        warn_of_damage(screen, store)


def tail(
    directory: Dir = None,
    dir_option: DirOption = None,
    text: Annotated[str, typer.Option("--text", help="Only ids that have this in them.", show_default=False)] = "",
    last: Annotated[int, typer.Option("--last", min=0, help="Calls that are there already, the newest.")] = 10,
    every: Every = 1.0,
    as_json: JsonLines = False,
    debug: Debug = False,
) -> None:
    """
    Show calls as they are committed, until Ctrl-C.

    `gym-capture tail runs/local/model-calls`

    `gym-capture tail DIR --last 0 --json | jq .call.latency_total_ms`
    """
    from gym_capture.cli.overview_view import call_line

    with looking(as_json=as_json, debug=debug) as screen:
        store = CaptureStore(capture_files(one_directory(directory, dir_option)))
        following = NewCalls(store, text)
        warn = _warning(screen, store)

        def tell(calls: list[NewCall]) -> None:
            warn()
            for call in calls:
                if as_json:
                    screen.line(plain_json(call))
                else:
                    screen.out.print(call_line(call), soft_wrap=True)

        tell(following.last(last))
        try:
            while pulse.wait(every):
                tell(following.take())
        except KeyboardInterrupt:
            return  # which is how it ends


def diff(
    words: Annotated[
        list[str],
        typer.Argument(metavar="[DIR] A B", autocompletion=complete_rollout, show_default=False),
    ],
    dir_option: DirOption = None,
    other_dir: Annotated[
        str | None, typer.Option("--other-dir", help="Where B is, if not in DIR.", show_default=False)
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """
    Compare two rollouts call by call: which requests and answers are the same, what differs, tokens and times.

    `gym-capture diff runs/local/model-calls 7-0 7-1`

    `gym-capture diff --dir OLD 7-0 7-0 --other-dir NEW`
    """
    with looking(as_json=as_json, debug=debug) as screen:
        given, [left, right] = directory_and_ids(words, dir_option, 2)
        store = open_directory(given)
        other = store if other_dir is None else open_directory(other_dir)
        found = difference_of(
            read_conversation(store, require_rollout(store, left)),
            read_conversation(other, require_rollout(other, right)),
        )
        if as_json:
            screen.document(plain_json(found))
        else:
            from gym_capture.cli.conversation_view import difference_view

            screen.out.print(difference_view(found))
        for each in {store.directory: store, other.directory: other}.values():
            warn_of_damage(screen, each)


def check(
    directory: Dir = None,
    dir_option: DirOption = None,
    expected: Annotated[
        Path | None,
        typer.Option(
            "--expected",
            help="A file of the rollouts that have to be there: JSON lines of rows or records, or an id a line.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """
    Say of each rollout whether it is observed, open, incomplete or unobserved, for pipelines.

    Exit status 0: there are rollouts, and all of them are observed. 3: evidence is missing, or there is none at all. 4:
    the log is damaged besides. With --expected a rollout that nothing is known of is unobserved.

    `gym-capture check runs/local/model-calls`

    `gym-capture check DIR --expected runs/local/rollouts.jsonl --json`
    """
    with looking(as_json=as_json, debug=debug, judges=True) as screen:
        ids = None if expected is None else expected_ids(expected)
        store = open_directory(one_directory(directory, dir_option))
        health = check_health(store, ids)
        if as_json:
            screen.document(plain_json(health))
        else:
            from gym_capture.cli.overview_view import health_view

            screen.out.print(health_view(health))
        warn_of_damage(screen, store)
        if not health.healthy:
            raise typer.Exit(Exit.DAMAGE if health.damaged else Exit.EVIDENCE_MISSING)
