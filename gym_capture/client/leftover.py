"""What a client still holds as it ends, and the one line that says so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from gym_capture.client.trouble_log import logger

_NAMED = 3


class Leftover(NamedTuple):
    """What one core was told to write and no owner has acknowledged.

    Fields: `exchanges` by rollout; `sent` are those among them that had been sent, so the owner may have written them;
    `others` are claims, releases, marks and clears.
    """

    exchanges: Mapping[str, int]
    sent: int
    others: int


def warn_of_leftovers(leftovers: Iterable[Leftover]) -> None:
    """Say what is lost with a client, in one line for all of its shards. Nothing left: nothing said."""
    exchanges: Counter[str] = Counter()
    sent = others = 0
    for leftover in leftovers:
        exchanges.update(leftover.exchanges)
        sent += leftover.sent
        others += leftover.others
    if exchanges:
        logger.warning(
            "%d exchange(s) were not acknowledged by a capture owner and are lost with this client: %s%s. Start an "
            "owner before calls are made and stop it after the last one; collect these rollouts again",
            exchanges.total(),
            _listed(exchanges),
            f" ({sent} of them had been sent and may be on disk)" if sent else "",
        )
    elif others:
        logger.warning(
            "capture did not come to rest: %d claim(s), release(s), mark(s) or clear(s) were not acknowledged by a "
            "capture owner",
            others,
        )


def _listed(exchanges: Counter[str]) -> str:
    """A few rollouts by name, those with most exchanges first, and how many more there are."""
    named = sorted(exchanges.items(), key=lambda item: (-item[1], item[0]))[:_NAMED]
    text = ", ".join(f"{count} of rollout {rollout}" for rollout, count in named)
    more = len(exchanges) - len(named)
    if more:
        text += f" and {exchanges.total() - sum(count for _, count in named)} of {more} more rollouts"
    return text
