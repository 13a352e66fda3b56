"""Where an owner listens."""

from __future__ import annotations

import msgspec


class Endpoint(msgspec.Struct, frozen=True):
    """Where and how an owner's stream is reached.

    Args:
        host, port: the address; port 0: the owner has no stream.
        token: what a Hello must show. Readable by whoever may read the directory (a 0600 file), or told by the actor.
        run: the run's uuid, hex.
        epoch: the owner's epoch.
        tls: whether the stream is TLS with Ray's own certificates.
    """

    host: str
    port: int
    token: str
    run: str
    epoch: int
    tls: bool = False
