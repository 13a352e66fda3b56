"""The configurations of a run that everything has to hold in, over whichever transport; nobody can tell them apart."""

from __future__ import annotations

from typing import NamedTuple


class Configuration(NamedTuple):
    """One of them.

    Fields: how many `shards`; whether messages that a rollout's requests repeat are stored once (`history`).
    """

    shards: int
    history: bool

    def __str__(self) -> str:
        return f"{self.shards}-shards-history-{'on' if self.history else 'off'}"


CONFIGURATIONS = tuple(Configuration(shards, history) for shards in (1, 4) for history in (True, False))
