"""What an owner is started with."""

from __future__ import annotations

import msgspec

from gym_capture import __version__
from gym_capture.errors import ConfigError
from gym_capture.model.codec import MAX_FRAME_BYTES

PACKAGE_VERSION = __version__
"""What the owner says of itself in a welcome."""

_MIB = 1 << 20
_MESSAGE_SLACK_BYTES = 1 << 20
_MOST_MESSAGE_BYTES = MAX_FRAME_BYTES - (MAX_FRAME_BYTES >> 3)
"""Rows grow a little when the owner completes them."""


class OwnerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The owner's settings, checked by `checked()`.

    Args:
        lease_s: how long a client may be silent before its claims are lost, in seconds of serving time.
        beat_s: how often the owner moves its beat and looks whether it still owns the directory.
        tick_s: how often leases are looked at.
        segment_bytes: a segment of this length is finished and the next begun.
        window_bytes: unanswered batch bytes that one client may have under way.
        max_exchange_bytes: a larger exchange (before compression) is refused and its rollout marked.
        max_batch_bytes: what a client puts into one batch at most; one exchange always fits.
        owner_buffer_bytes: unanswered bytes of all clients; beyond it nothing more is read until some are on disk.
        group_bytes: what one append and sync covers at most (one frame always fits).
        reopen_first_s, reopen_max_s: after a failed write, the pause before the directory is taken anew; it doubles up
            to the maximum until a group was written again.
        reopen_wait_s: how long a direct call waits for that before it raises OwnerUnavailable.
        hello_s: how long a connection may be open without a complete hello.
        send_buffer_bytes: replies that a client has not read; above it the client's calls are no longer read, and at
            four times as much (or a stall of `lease_s`) the connection is dropped.
        read_bytes: what one reply may hold of stored payloads.
        checkpoint_rows: rows of the log (a claim and its commit are two) after which a checkpoint is written. What a
            takeover has to read of the log is about as much, and what is held in memory of finished rollouts twice.
    """

    lease_s: float = 6.0
    beat_s: float = 2.0
    tick_s: float = 0.5
    segment_bytes: int = 64 * _MIB
    window_bytes: int = 8 * _MIB
    max_exchange_bytes: int = 64 * _MIB
    max_batch_bytes: int = 4 * _MIB
    owner_buffer_bytes: int = 1024 * _MIB
    group_bytes: int = 64 * _MIB
    reopen_first_s: float = 0.1
    reopen_max_s: float = 5.0
    reopen_wait_s: float = 10.0
    hello_s: float = 10.0
    send_buffer_bytes: int = 16 * _MIB
    read_bytes: int = 256 * _MIB
    checkpoint_rows: int = 8192

    def checked(self) -> OwnerSettings:
        """These settings.

        Raises:
            ConfigError: a value cannot work; the message names it.
        """
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if not value > 0 or value == float("inf"):
                raise ConfigError(f"owner setting {name} is {value}: give a finite number above 0.")
        if self.tick_s > self.lease_s / 2:
            raise ConfigError(f"tick_s is {self.tick_s}: leases of {self.lease_s} s need at most half of that.")
        if self.max_message_bytes > _MOST_MESSAGE_BYTES:
            raise ConfigError(
                f"max_exchange_bytes is {self.max_exchange_bytes} and max_batch_bytes {self.max_batch_bytes}: twice "
                f"the one and once the other stay below {_MOST_MESSAGE_BYTES}, for a frame of the log holds no more."
            )
        return self

    @property
    def max_message_bytes(self) -> int:
        """The largest message a client may send: the derived record can be as large as what it was derived from."""
        return 2 * self.max_exchange_bytes + self.max_batch_bytes + _MESSAGE_SLACK_BYTES
