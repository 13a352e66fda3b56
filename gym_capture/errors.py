"""Every error that gym_capture raises on purpose: one tree, one line a class saying when it is raised.

A message says what happened, what is safe and what to do next; what a program may want to look at is a field.
Errors travel from the owner to its clients by class name (`from_wire`).
"""

from __future__ import annotations

from typing import Any, ClassVar


class GymCaptureError(Exception):
    """Any error of this package. Keyword arguments become fields (`error.fields`, and attributes)."""

    def __init__(self, message: str = "", **fields: Any) -> None:
        super().__init__(message)
        self.fields = fields

    def __getattr__(self, name: str) -> Any:
        # Reached only for names that are not set: the fields read as attributes.
        fields = self.__dict__.get("fields", {})
        if name in fields:
            return fields[name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), str(self), self.fields))


def _rebuild(kind: type[GymCaptureError], message: str, fields: dict[str, Any]) -> GymCaptureError:
    return kind(message, **fields)


class InvalidRolloutId(GymCaptureError, ValueError):
    """A rollout id has characters, a length or a shape that ids may not have."""


class InvalidExchange(GymCaptureError, ValueError):
    """An exchange cannot be captured as given (unknown dialect, values that are not JSON)."""


class ExchangeTooLarge(InvalidExchange):
    """An exchange exceeds `max_exchange_bytes`; it is refused and its rollout marked incomplete."""


class ConflictingExchange(GymCaptureError):
    """Another exchange was already committed under this model_call_id; the first one stands."""


class Fenced(GymCaptureError):
    """The generation that this work belongs to was cleared; nothing was written."""


class DroppedExchange(GymCaptureError):
    """The owner stayed away and the client's buffer is full; the exchange is lost and counted."""


class ConfigError(GymCaptureError, ValueError):
    """The configuration has an unknown key or a value that cannot work."""


class CaptureDirectoryError(GymCaptureError, OSError):
    """The capture directory is relative, absent, not a directory, or cannot be written."""


class MissingRunMarker(CaptureDirectoryError):
    """The directory has no RUN file, so it is not (or not the mount of) a run's capture directory."""


class ShardGiven(CaptureDirectoryError):
    """A shard's directory or actor was given, which knows a part of the run only; nothing was done."""


class RunSealed(CaptureDirectoryError):
    """The run was sealed: its log is closed for good, what it holds is in a dataset, and nothing more is written."""


class RemoteUnavailable(GymCaptureError):
    """A place elsewhere (a URI) cannot be read or written, or no sealed run lies there; run it again."""


class TargetTaken(GymCaptureError):
    """Where a sealed run is to be carried to lies something else; nothing there was changed."""


class UnsettledRun(GymCaptureError):
    """A run that is to be sealed has open claims or damage; nothing was sealed."""


class DirectoryHeld(GymCaptureError):
    """Another live owner holds the capture directory."""


class Superseded(GymCaptureError):
    """A newer owner has taken the directory; this one refuses everything from now on."""


class NameTaken(GymCaptureError):
    """A live actor of this name serves another run."""


class SettingsDiffer(GymCaptureError):
    """The run was started with other settings; `keys` names them."""


class OwnerNotFound(GymCaptureError):
    """No live owner could be found by what was given; `candidates` lists those that are there."""


class RolloutNotFound(GymCaptureError):
    """A capture directory has no rollout of that id; `nearest` lists those that are most like it."""


class OwnerUnavailable(GymCaptureError):
    """The owner is away or cannot write now; nothing was acknowledged, try again later."""


class HandshakeRefused(GymCaptureError):
    """The owner refused the connection (token, run or protocol version)."""


class ProtocolError(GymCaptureError):
    """Bytes on a connection are not what the protocol allows; the connection is closed."""


class ClientClosed(GymCaptureError):
    """The client was closed (or its process is ending); open a new one with connect()."""


class DamagedLog(GymCaptureError):
    """Stored bytes do not match their checksum; raised by strict readers only."""


class FormatError(DamagedLog):
    """A file of the capture directory has another format or version than this package reads."""


class RolloutFunctionError(GymCaptureError):
    """The collector's rollout function cannot be imported or has the wrong signature."""


class InputRowError(GymCaptureError, ValueError):
    """A line of the collector's input is not a JSON object; `line` is its 1-based number."""


class OutputError(GymCaptureError):
    """The collector's output or failures file is held by another run, not its own, or cannot be written."""


class MissingExtra(GymCaptureError, ImportError):
    """An optional part of the package is used whose extra is not installed; the message has the command."""


class RayUnavailable(GymCaptureError):
    """Ray could not be started, or the cluster could not be joined."""


class WorkersUnavailable(GymCaptureError):
    """The collector's worker processes die as they start, so nothing can be rolled out."""


class ProxyUnavailable(GymCaptureError):
    """A capturing proxy cannot listen on its address, or dies as it starts."""


class ViewerUnavailable(GymCaptureError):
    """The viewer cannot listen on its port."""


class _Registry:
    """Class names to classes, for errors that arrive over the wire."""

    by_name: ClassVar[dict[str, type[GymCaptureError]]] = {}


def _register(kind: type[GymCaptureError]) -> None:
    _Registry.by_name[kind.__name__] = kind
    for child in kind.__subclasses__():
        _register(child)


_register(GymCaptureError)


def from_wire(code: str, message: str) -> GymCaptureError:
    """The error that an owner reported as `code` (a class name); unknown codes become `GymCaptureError`."""
    kind = _Registry.by_name.get(code)
    if kind is None:
        return GymCaptureError(f"{code}: {message}")
    return kind(message)


__all__ = [*sorted(_Registry.by_name), "from_wire"]
