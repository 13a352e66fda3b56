"""`spans`: what was captured, as OpenTelemetry spans."""

from __future__ import annotations

from typing import Annotated

import typer

from gym_capture.cli.opened import looking, open_directory, require_rollout, warn_of_damage
from gym_capture.cli.options import Debug, Dir, DirOption, Json, one_directory


def spans(
    directory: Dir = None,
    dir_option: DirOption = None,
    rollout: Annotated[
        list[str] | None, typer.Option("--rollout", help="Only this one; may be given again.", show_default=False)
    ] = None,
    content: Annotated[
        bool, typer.Option("--content", help="Send what was said, too: prompts, answers, tool calls.")
    ] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """
    Send captured calls to an OpenTelemetry collector: a trace for each rollout, in it a span for each call.

    It speaks OTLP over HTTP, to where `OTEL_EXPORTER_OTLP_ENDPOINT` (and `OTEL_EXPORTER_OTLP_HEADERS`) say; a collector
    on this host unless they are set. Names and figures are those of the conventions for generative AI; what was said
    stays here unless `--content` is given. Sent again, a rollout is the same trace.

    `OTEL_EXPORTER_OTLP_ENDPOINT=http://collector:4318 gym-capture spans runs/local/model-calls`

    `gym-capture spans DIR --rollout 7-0 --content`
    """
    with looking(as_json=as_json, debug=debug) as screen:
        store = open_directory(one_directory(directory, dir_option))
        wanted = None if not rollout else [require_rollout(store, each) for each in rollout]

        from gym_capture.integrations.otel import export_spans  # its extra may be missing

        sent = export_spans(store, rollout_ids=wanted, content=content)
        if as_json:
            screen.document(sent._asdict())
        else:
            lost = f"; {sent.damaged} calls cannot be read" if sent.damaged else ""
            screen.out.print(f"sent {sent.rollouts} rollouts with {sent.calls} calls{lost}", soft_wrap=True)
        warn_of_damage(screen, store)
