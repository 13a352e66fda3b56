"""What the calls of a rollout ask: requests that repeat what earlier ones said, and requests that do not."""

from __future__ import annotations

from random import Random
from typing import Any

CONVERSING = 0.75
"""Of so many schedules the calls converse. In the others each request is a few bytes of its own."""

KINDS = {"next": 60, "rewound": 10, "another agent": 15, "alone": 15}
"""How a request of a conversing rollout begins: with all that was said, with some of it, with what another agent of the
rollout said, or with nothing that was said before."""


class Conversations:
    """The requests of a schedule.

    A rollout's conversation goes on from attempt to attempt, so that after a clear requests repeat what only
    the generation before has stored.

    Args:
        random: of its own, so that the schedule is the same whatever is said.

    Attributes:
        requests: what each call asked, by its id.
    """

    def __init__(self, random: Random) -> None:
        self.requests: dict[str, dict[str, Any]] = {}
        self.conversing = random.random() < CONVERSING
        self._random = random
        self._said: dict[tuple[str, str], list[dict[str, str]]] = {}

    def request(self, rollout: str, call_id: str) -> dict[str, Any]:
        """The request of a new call."""
        request: dict[str, Any] = {"call": call_id}
        if self.conversing:
            request = {**self._conversed(rollout, call_id), **request}
        self.requests[call_id] = request
        return request

    def _conversed(self, rollout: str, call_id: str) -> dict[str, Any]:
        random = self._random
        kind = random.choices(list(KINDS), list(KINDS.values()))[0]
        if kind == "alone":
            return {"messages": [self._message("user", call_id, 150)]}
        agent = "second" if kind == "another agent" else "first"
        said = self._said.setdefault((rollout, agent), [self._message("system", f"{rollout}, {agent}", 200)])
        if kind == "rewound":
            del said[random.randint(1, len(said)) :]
        said.append(self._message("user", call_id, random.choice([2, 40, 90])))
        conversed: dict[str, Any] = {"messages": list(said)}
        if agent == "second":
            conversed["tools"] = [{"name": f"tool-{n}", "description": "what it is good for " * 3} for n in range(2)]
        return conversed

    def _message(self, role: str, name: str, length: int) -> dict[str, str]:
        return {"role": role, "content": f"{name}: {self._random.randbytes(length // 2).hex()}"}
