"""A captured exchange with its exact bytes, and a rollout of them: what is sealed, exported, imported and tabled.

The log, NeMo Gym's files and the sealed dataset all give these, so that whoever reads exchanges need not know where
they lie.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from gym_capture.model.exchange import (
    PAYLOADS,
    SealedExchange,
    Snapshot,
    Text,
    open_exchange,
    open_part,
    open_record,
    pack,
    payloads_of,
)
from gym_capture.model.json_text import to_json
from gym_capture.model.record import DERIVATION_VERSION
from gym_capture.model.rows import Part, PartFlag, PartKind

STORED_FLAGS = int(PartFlag.BYTES | PartFlag.NONSTANDARD | PartFlag.NOT_JSON)
"""The `PartFlag` bits that say something of a text, not of how it is stored."""


# Every call that is read comes through here, and an enum's members cost a look-up each.
_RECORD = int(PartKind.RECORD)
_KINDS = {int(kind): kind for kind in PartKind}


class CapturedCall(NamedTuple):
    """One exchange as it was committed.

    Fields: `call_index` in its rollout's generation; `model_call_id` and `digest`, its identity; `record`, the RECORD
    part; `texts`, the META part and the payloads by kind, uncompressed, with the `STORED_FLAGS` bits (none where they
    were not asked for); `raw_bytes` of all its parts; `derivation`, the version of the derivation that made the record.
    """

    call_index: int
    model_call_id: str
    digest: bytes
    record: bytes
    texts: Mapping[PartKind, Text]
    raw_bytes: int
    derivation: int = DERIVATION_VERSION

    def fields(self) -> dict[str, Any]:
        """What is derived of it (`record.derive_fields`).

        Raises:
            DamagedLog: the record is none.
        """
        return open_record(self.record)[0]

    def exchange(self) -> dict[str, Any]:
        """The exchange, as `CaptureStore.read` gives it.

        Raises:
            DamagedLog: its META part is missing or no object.
        """
        return open_exchange(_parts(self))

    def payloads(self) -> dict[str, Any]:
        """The four payload values of the exchange, null where there is none."""
        return payloads_of([(part, data) for part, data in _parts(self) if part.kind != PartKind.META])

    def packed(self) -> SealedExchange:
        """The exchange ready to be committed, its record derived anew."""
        payloads = dict(_in(self))
        del payloads[PartKind.META]
        return pack(Snapshot(self.model_call_id, self.texts[PartKind.META], payloads, None))


def _in(call: CapturedCall) -> list[tuple[PartKind, Text]]:
    return sorted(call.texts.items())


def _parts(call: CapturedCall) -> list[tuple[Part, bytes]]:
    return [(Part(kind, text.flags, 0, len(text.data), len(text.data), 0), text.data) for kind, text in _in(call)]


class CapturedRollout(NamedTuple):
    """One generation of a rollout.

    Fields: `calls` in call order, to be gone through once; `indexes`, how many call indexes were given (those without
    a call are damaged); `reasons`, why evidence is known to be missing (None: it is not; empty: marked without a
    reason); `outstanding`, how many claims are open; `late`, rows that landed after a merge and that none returned.
    """

    rollout_id: str
    generation: int
    calls: Iterable[CapturedCall]
    indexes: int
    reasons: Mapping[str, int] | None = None
    outstanding: int = 0
    late: int = 0


class CountedCalls:
    """Calls that are counted as they are gone through, once.

    Attributes:
        calls: how many there were so far.
    """

    def __init__(self, given: Iterable[CapturedCall]) -> None:
        self._given = given
        self.calls = 0

    def __iter__(self) -> Iterator[CapturedCall]:
        for call in self._given:
            self.calls += 1
            yield call


def captured_parts(
    call_index: int,
    model_call_id: str,
    digest: bytes,
    parts: Iterable[tuple[Part, bytes]],
    raw_bytes: int | None = None,
) -> CapturedCall:
    """A call from its opened parts.

    Args:
        parts: as `exchange.open_part` gives their bytes.
        raw_bytes: of all its parts, where these are not all.
    """
    size = 0
    record = b""
    texts: dict[PartKind, Text] = {}
    for part, data in parts:
        size += len(data)
        if part.kind == _RECORD:
            record = data
        else:
            texts[_KINDS.get(part.kind) or PartKind(part.kind)] = Text(data, part.flags & STORED_FLAGS)
    return CapturedCall(call_index, model_call_id, digest, record, texts, size if raw_bytes is None else raw_bytes)


def captured_value(
    call_index: int, exchange: Mapping[str, Any], payloads: Mapping[PartKind, Text] | None = None
) -> CapturedCall:
    """A call from an exchange as JSON values, whatever it lacks.

    Args:
        payloads: the texts of its payloads where they are at hand; then its payload values are not looked at.

    Raises:
        InvalidExchange: something in it has no JSON form.
    """
    given = dict(exchange)
    texts = dict(payloads) if payloads is not None else {}
    for key, kind in PAYLOADS.items():
        value = given.get(key)
        if value is None:
            continue
        given[key] = None
        if payloads is None:
            encoded = to_json(value)
            texts[kind] = Text(encoded.text, int(PartFlag.NONSTANDARD) if encoded.nonstandard else 0)
    meta = to_json(given)
    call_id = given.get("model_call_id")
    name = call_id.encode("utf-8", "backslashreplace").decode() if isinstance(call_id, str) else ""
    sealed = pack(Snapshot(name, Text(meta.text, int(PartFlag.NONSTANDARD) if meta.nonstandard else 0), texts, None))
    opened = [(part, open_part(part, stored)) for part, stored in zip(sealed.parts, sealed.body, strict=True)]
    return captured_parts(call_index, name, sealed.digest, opened)
