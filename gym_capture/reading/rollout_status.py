"""How whole the evidence of a rollout is, in one word."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

Status = Literal["observed", "open", "incomplete", "unobserved"]
"""`observed`: calls were captured and nothing is known to be missing. `open`: so far, but claims are outstanding.
`incomplete`: evidence is known to be missing, or damaged. `unobserved`: the rollout is known, nothing was captured."""

STATUSES: tuple[Status, ...] = get_args(Status)


def status_of(*, calls: int, damaged: int, reasons: Mapping[str, int] | None, outstanding: int) -> Status:
    """The status of a rollout. The worse word wins: what is incomplete stays so while claims are open.

    Args:
        calls: call indexes that were given, damaged ones included.
        damaged: those of them that cannot be read.
        reasons: incompleteness reasons; None: nothing is known to be missing.
        outstanding: open claims.
    """
    if reasons is not None or damaged:
        return "incomplete"
    if outstanding:
        return "open"
    return "observed" if calls else "unobserved"
