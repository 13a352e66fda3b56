"""Which owner a client belongs to: plain values, so that a client can be opened again in another process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gym_capture.client.options import ClientOptions
from gym_capture.model.client_settings import ClientSettings

TransportChoice = Literal["auto", "stream", "ray"]


@dataclass(frozen=True, slots=True)
class Source:
    """One run's owner, and how to reach it.

    Args:
        run: the run's uuid, hex.
        directory: the capture directory, or None when it is not known. It need not be mounted everywhere.
        name, namespace: the actor's; no name: it is found by its directory only.
        transport: `auto` is the stream where it can be reached, else Ray calls.
        options: the client's limits and times; `options.run` is `run`.
    """

    run: str
    directory: str | None
    name: str | None
    namespace: str
    transport: TransportChoice
    options: ClientOptions


def client_options(run: str, settings: ClientSettings) -> ClientOptions:
    """How a client of a run behaves, by what its owner tells every client."""
    redact = settings.redact
    return ClientOptions(
        run=run,
        patience_s=settings.patience_s,
        drain_timeout_s=settings.drain_timeout_s,
        lease_s=settings.lease_s,
        max_exchange_bytes=settings.max_exchange_bytes,
        max_batch_bytes=settings.max_batch_bytes,
        client_buffer_bytes=settings.client_buffer_bytes,
        history=settings.history,
        redact=redact if redact.paths or redact.patterns else None,
    )
