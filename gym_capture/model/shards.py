"""Which of a run's shards a rollout belongs to, and what a shard's owner is called. Pure."""

from __future__ import annotations

import re
from hashlib import sha256

MOST_SHARDS = 256

_SHARD_NAME = re.compile(r"(.+)-shard-([1-9][0-9]*)")


def shard_of(rollout_id: str, shards: int) -> int:
    """The number of the shard that a rollout belongs to, the same in every process and version.

    The first eight bytes of the SHA-256 of the id, as a big-endian number, modulo the number of shards.
    """
    if shards == 1:
        return 0
    digest = sha256(rollout_id.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") % shards


def shard_actor_name(name: str, shard: int) -> str:
    """The actor's name of a shard of the run whose owner is called `name`: shard 0 has the plain name."""
    return f"{name}-shard-{shard}" if shard else name


def run_actor_name(name: str) -> str:
    """The plain name that belongs to the name of any shard's actor."""
    match = _SHARD_NAME.fullmatch(name)
    return match[1] if match else name
