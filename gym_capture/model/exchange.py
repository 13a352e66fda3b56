"""Exchanges: from what a caller hands in to the parts that are stored, and back.

An exchange is a mapping (`CONTRACT`: Exchange). Its four payloads (request, response and their raw forms) become
parts of their own, everything else becomes the META part with the keys in their order, and what is derived from it
(`record.derive_fields`) becomes the RECORD part, so that a merge reads records only.

Two steps, because payloads are the caller's living objects: `snapshot` turns them into text at once, in the caller's
thread; `pack` (digest, derivation from bytes, compression, checksums) can run later in another thread.
"""

from __future__ import annotations

import hashlib
import json
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import google_crc32c
import msgspec
import zstandard

from gym_capture.errors import DamagedLog, ExchangeTooLarge, FormatError, InvalidExchange
from gym_capture.model.history import (
    NO_STRETCHES,
    SKELETON_SLACK_BYTES,
    Found,
    MessageRun,
    Stretch,
    find_messages,
    resolve,
    weave,
)
from gym_capture.model.json_text import JsonText, decode_json, parse_json, to_json
from gym_capture.model.record import derive_fields, reads_request
from gym_capture.model.redaction import REDACTED, Redaction
from gym_capture.model.rows import Part, PartFlag, PartKind
from gym_capture.model.verifiers import VERIFIER_ID_FIELD, VERIFIER_KEY, verifier_declaration

DIALECTS = ("responses", "chat", "messages")

PAYLOADS: dict[str, PartKind] = {
    "request": PartKind.REQUEST,
    "response": PartKind.RESPONSE,
    "request_raw": PartKind.REQUEST_RAW,
    "response_raw": PartKind.RESPONSE_RAW,
}
"""The keys of an exchange that are stored as parts of their own."""

_KEY_OF = {kind: key for key, kind in PAYLOADS.items()}
_KINDS = {int(kind): kind for kind in PartKind}
_PAYLOAD_KINDS = tuple(PAYLOADS.items())

# Every commit comes through here, and an enum's members cost a look-up each.
_RECORD, _META, _RESPONSE = PartKind.RECORD, PartKind.META, PartKind.RESPONSE
_REQUEST, _MESSAGE = PartKind.REQUEST, PartKind.MESSAGE
_RAW_KINDS = (PartKind.REQUEST_RAW, PartKind.RESPONSE_RAW)
_ZSTD, _BYTES, _NONSTANDARD, _NOT_JSON, _HISTORY = map(
    int, (PartFlag.ZSTD, PartFlag.BYTES, PartFlag.NONSTANDARD, PartFlag.NOT_JSON, PartFlag.HISTORY)
)

_COMPRESS_FROM_BYTES = 256
_COMPRESS_FIELDS_FROM_BYTES = 1024
"""The same for META and RECORD, which are short and read by every merge: below this the time is worth more."""

MAX_RAW_BYTES = 1 << 30
"""No part is longer before compression; a row that says more is damaged (or means to fill the reader's memory)."""

_per_thread = threading.local()
_crc = google_crc32c.value  # `codec.checksum` without its conversions


class Text(NamedTuple):
    """One payload as bytes, with the `PartFlag` bits that say what they are."""

    data: bytes
    flags: int


class Snapshot(NamedTuple):
    """An exchange frozen at one moment.

    Fields: `meta` (the exchange with its payloads left null), the payload texts by kind, and the derived fields, or
    None when they have to be derived from the texts (a payload was given as bytes).
    """

    model_call_id: str
    meta: Text
    texts: dict[PartKind, Text]
    fields: dict[str, Any] | None

    @property
    def raw_bytes(self) -> int:
        """Bytes of the exchange before compression."""
        size = len(self.meta.data)
        for text in self.texts.values():
            size += len(text.data)
        return size


class SealedMessages(NamedTuple):
    """Messages of a history ready to be sent: their digests, parts (offsets from the start of `body`) and bytes."""

    digests: list[bytes]
    parts: list[Part]
    body: list[bytes]
    body_bytes: int


class SealedExchange(NamedTuple):
    """An exchange ready to be sent: its identity, its parts (offsets from the start of `body`) and their bytes.

    Fields: with a history, how many of its messages the request `needs`, which of these are `found` in an earlier
    request, and which are `new`, in the order of their numbers; the others are with the owner before. And its lists
    as the next request may repeat them (`history.Stretch`).
    """

    model_call_id: str
    digest: bytes
    parts: list[Part]
    body: list[bytes]
    body_bytes: int
    needs: int = 0
    found: Found | None = None
    new: SealedMessages | None = None
    stretches: Mapping[str, Stretch] = NO_STRETCHES


def check_dialect(dialect: object) -> str:
    """The dialect, if it is one.

    Raises:
        InvalidExchange: naming the three that are known.
    """
    if isinstance(dialect, str) and dialect in DIALECTS:
        return dialect
    raise InvalidExchange(f"dialect {dialect!r} is not known; use one of {', '.join(DIALECTS)}")


def random_call_id() -> str:
    """A new model_call_id."""
    return uuid.uuid4().hex


def snapshot(
    exchange: Mapping[str, Any],
    new_id: Callable[[], str] = random_call_id,
    redaction: Redaction | None = None,
    *,
    settled_id: bool = False,
) -> Snapshot:
    """Freeze an exchange as it is now. A missing model_call_id is made up by `new_id`.

    Args:
        redaction: what is taken out of it; nothing of the snapshot holds that any more.
        settled_id: its model_call_id was redacted before.

    Raises:
        InvalidExchange: not a mapping, no known dialect, a model_call_id that is not a string, or values without a
            JSON form.
        ExchangeTooLarge: it has more than `MAX_RAW_BYTES`, whatever the configuration allows.
    """
    if not isinstance(exchange, Mapping):
        raise InvalidExchange(f"an exchange is a mapping, not a {type(exchange).__name__}")
    given = dict(exchange)
    check_dialect(given.get("dialect"))
    call_id = given.get("model_call_id")
    if call_id is None:
        call_id = given["model_call_id"] = new_id()
    elif not isinstance(call_id, str) or not call_id:
        raise InvalidExchange(f"model_call_id must be a non-empty string, not {call_id!r}")
    elif redaction is not None and not settled_id:
        call_id = given["model_call_id"] = redaction.identity(call_id)
    texts: dict[PartKind, Text] = {}
    encoded: dict[str, JsonText] = {}
    derivable = True
    for key, kind in _PAYLOAD_KINDS:
        value = given.get(key)
        if value is None:
            continue
        given[key] = None
        if isinstance(value, (bytes, bytearray, memoryview)):
            texts[kind] = Text(bytes(value), _BYTES)
            derivable = False
        else:
            encoded[key] = text = to_json(value)
            texts[kind] = _text(text)
    meta = to_json(given)
    if redaction is not None:
        stored = {key: text.value for key, text in encoded.items()}
        frozen = _redacted(redaction, _storable(call_id), meta, texts, stored)
    else:
        fields = derive_fields(_told(meta, encoded)) if derivable else None
        frozen = Snapshot(_storable(call_id), _text(meta), texts, fields)
    if frozen.raw_bytes > MAX_RAW_BYTES:
        raise ExchangeTooLarge(
            f"an exchange has {frozen.raw_bytes} bytes, at most {MAX_RAW_BYTES} are stored. Nothing was written."
        )
    return frozen


def _told(meta: JsonText, encoded: Mapping[str, JsonText]) -> dict[str, Any]:
    """An exchange as its texts tell it, never the caller's living objects, as far as fields are derived from it."""
    told: dict[str, Any] = meta.value
    response, request = encoded.get("response"), encoded.get("request")
    if response is not None:
        told["response"] = response.value
    if request is not None and reads_request(told["response"] if response is not None else None):
        told["request"] = request.value
    return told


def _text(value: JsonText) -> Text:
    return Text(value.text, _NONSTANDARD if value.nonstandard else 0)


def _redacted(
    redaction: Redaction, call_id: str, meta: JsonText, texts: dict[PartKind, Text], stored: dict[str, Any]
) -> Snapshot:
    """A snapshot without what is to be taken out. Its fields are derived here, because they are searched, too.

    Args:
        texts, stored: the payloads' texts, and the values of those that were not given as bytes.
    """
    sizes = {_KEY_OF[kind]: len(text.data) for kind, text in texts.items()}
    try:
        given = {key: stored.get(key, texts[kind].data) for key, kind in _PAYLOAD_KINDS if kind in texts}
        redacted = redaction.exchange({**meta.value, **given}, sizes)
        for key in redacted.payloads:
            value = redacted.values[key]
            texts[PAYLOADS[key]] = Text(value, _BYTES) if isinstance(value, bytes) else _text(to_json(value))
        if redacted.others:
            meta = to_json(redacted.values | dict.fromkeys(sizes))
        fields = redaction.fields(_derived(_text(meta), *_judged(texts)))
    except Exception:  # noqa: BLE001 - whatever it is, what was not searched to its end must not pass
        texts = {
            PAYLOADS[key]: Text(f"{REDACTED} {size} bytes withheld".encode(), _BYTES) for key, size in sizes.items()
        }
        meta = to_json({key: meta.value[key] for key in ("model_call_id", "dialect")})
        fields = _derived(_text(meta), *_judged(texts))
    return Snapshot(call_id, _text(meta), texts, fields)


def _storable(text: str) -> str:
    """Identity has to be valid UTF-8 on the wire; the id as it was given stays in META."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


def pack(
    frozen: Snapshot,
    known: Mapping[bytes, int] | None = None,
    first: int | None = None,
    earlier: bytes = b"",
    stretches: Mapping[str, Stretch] = NO_STRETCHES,
) -> SealedExchange:
    """Digest, derive, compress and checksum a snapshot. Never raises for what an exchange may hold.

    Args:
        known: messages that the owner has (`history.weave`): the request refers to them. None: it is stored whole.
        first: the number of the first message that is new; None: none is added.
        earlier: a request that was stored whole: its messages become the history's first ones.
        stretches: lists of the request before.
    """
    digest = hashlib.sha256(frozen.meta.data)
    texts, values = _judged(frozen.texts)
    for kind, text in texts.items():
        digest.update(b"%d:%d:" % (kind, len(text.data)))
        digest.update(text.data)
    fields = frozen.fields
    if fields is None:
        fields = _derived(frozen.meta, texts, values)
    if VERIFIER_ID_FIELD in fields:
        # A merge reads records only, and has to know the verifier's name.
        fields = {**fields, VERIFIER_KEY: decode_json(frozen.meta.data)[0][VERIFIER_KEY]}
    all_texts: dict[PartKind, Text] = {_RECORD: Text(encode_fields(fields), 0), _META: frozen.meta, **texts}
    request = texts.get(_REQUEST)
    found = None
    woven = None
    if known is not None and request is not None:
        if earlier and first is not None and (found := find_messages(earlier, request.data, first)) is not None:
            known = {digest: first + index for index, digest in enumerate(found.digests)}
            first += len(found.digests)
            stretches = found.stretches
        woven = weave(request.data, known, first, stretches)
    if woven is not None and request is not None:
        all_texts[_REQUEST] = Text(woven.skeleton, request.flags | _HISTORY)
    parts: list[Part] = []
    body: list[bytes] = []
    offset = 0
    for kind, text in all_texts.items():
        short = _COMPRESS_FIELDS_FROM_BYTES if kind is _RECORD or kind is _META else _COMPRESS_FROM_BYTES
        stored, flags = _compressed(text) if len(text.data) >= short else text
        raw = len(request.data) if request is not None and flags & _HISTORY else len(text.data)
        parts.append(Part(kind, flags, offset, len(stored), raw, _crc(stored)))
        body.append(stored)
        offset += len(stored)
    sealed = SealedExchange(frozen.model_call_id, digest.digest()[:16], parts, body, offset)
    if woven is None:
        return sealed
    new = _sealed_messages(woven.messages, woven.digests) if woven.messages else None
    return sealed._replace(needs=woven.needs, found=found, new=new, stretches=woven.stretches)


def _sealed_messages(messages: Sequence[bytes], digests: list[bytes]) -> SealedMessages:
    parts: list[Part] = []
    body: list[bytes] = []
    offset = 0
    for message in messages:
        stored, flags = _compressed(Text(message, 0)) if len(message) >= _COMPRESS_FROM_BYTES else (message, 0)
        parts.append(Part(_MESSAGE, flags, offset, len(stored), len(message), _crc(stored)))
        body.append(stored)
        offset += len(stored)
    return SealedMessages(digests, parts, body, offset)


def _derived(meta: Text, texts: Mapping[PartKind, Text], values: Mapping[PartKind, Any]) -> dict[str, Any]:
    """The fields that stored texts derive.

    Args:
        texts, values: see `_judged`.
    """
    exchange = _parsed_meta(meta)
    response = texts.get(_RESPONSE)
    if response is not None:
        exchange["response"] = values[_RESPONSE] if _RESPONSE in values else _json_or_none(response)
    request = texts.get(_REQUEST)
    if request is not None and reads_request(exchange.get("response")):
        exchange["request"] = values[_REQUEST] if _REQUEST in values else _json_or_none(request)
    fields = derive_fields(exchange)
    if response is not None and response.flags & _NOT_JSON and fields.get("error_category") is None:
        fields["error_category"] = "capture_parse_error"
    return fields


def _json_or_none(text: Text) -> Any:
    if text.flags & _NOT_JSON:
        return None
    try:
        return parse_json(text.data)
    except ValueError:  # nested deeper than can be followed from here
        return None


def seal(exchange: Mapping[str, Any]) -> SealedExchange:
    """`snapshot` and `pack` in one."""
    return pack(snapshot(exchange))


def _judged(texts: Mapping[PartKind, Text]) -> tuple[dict[PartKind, Text], dict[PartKind, Any]]:
    """Bytes that were given: are they standard JSON, nonstandard JSON, or no JSON at all? And what the JSON among them
    holds.
    """
    judged: dict[PartKind, Text] = {}
    values: dict[PartKind, Any] = {}
    for kind, text in texts.items():
        flags = text.flags
        if flags & _BYTES and kind not in _RAW_KINDS:
            try:
                values[kind], nonstandard = decode_json(text.data)
            except ValueError:
                flags |= _NOT_JSON
            else:
                flags |= _NONSTANDARD if nonstandard else 0
        judged[kind] = text if flags == text.flags else Text(text.data, flags)
    return judged, values


def _compressed(text: Text) -> tuple[bytes, int]:
    compressor = getattr(_per_thread, "compressor", None)
    if compressor is None:
        compressor = _per_thread.compressor = zstandard.ZstdCompressor(level=1)
    packed: bytes = compressor.compress(text.data)
    return (packed, text.flags | _ZSTD) if len(packed) < len(text.data) else (text.data, text.flags)


def open_part(part: Part, stored: bytes) -> bytes:
    """A part's bytes as they were before compression. Those of a skeleton are not yet its text (`open_text`).

    Raises:
        DamagedLog: the stored bytes are short, do not match their checksum, or are not what the part says.
    """
    if len(stored) != part.length or _crc(stored) != part.crc:
        raise DamagedLog(f"a stored {_kind_name(part)} does not match its checksum; other parts can still be read.")
    skeleton = part.flags & _HISTORY
    if not part.flags & _ZSTD:
        if part.raw != part.length and not skeleton:
            raise DamagedLog(f"a stored {_kind_name(part)} has {part.length} bytes instead of {part.raw}.")
        return stored
    try:
        # The decompressor takes the length that the stored frame itself names, so look at that before.
        length = zstandard.frame_content_size(stored)
        if length > MAX_RAW_BYTES or not (
            0 <= length <= part.raw + SKELETON_SLACK_BYTES if skeleton else length == part.raw
        ):
            raise DamagedLog(f"a stored {_kind_name(part)} unpacks to {length} bytes instead of {part.raw}.")
        raw: bytes = _decompressor().decompress(stored, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise DamagedLog(f"a stored {_kind_name(part)} cannot be decompressed: {error}") from error
    if len(raw) != length:
        raise DamagedLog(f"a stored {_kind_name(part)} unpacks to {len(raw)} bytes instead of {part.raw}.")
    return raw


def open_text(part: Part, stored: bytes, needs: int, messages: MessageRun) -> bytes:
    """A part's bytes as they were handed in; of a skeleton, the text that it stands for.

    Args:
        needs, messages: see `history.resolve`.

    Raises:
        DamagedLog: as `open_part`, or messages that it refers to are damaged. Also whatever `messages` raises.
    """
    opened = open_part(part, stored)
    if not part.flags & _HISTORY:
        return opened
    if part.raw > MAX_RAW_BYTES:
        raise DamagedLog(f"a stored {_kind_name(part)} claims to stand for {part.raw} bytes.")
    return resolve(opened, part.raw, needs, messages)


def _decompressor() -> zstandard.ZstdDecompressor:
    """This thread's; making one costs more than using it on a record."""
    decompressor: zstandard.ZstdDecompressor | None = getattr(_per_thread, "decompressor", None)
    if decompressor is None:
        decompressor = _per_thread.decompressor = zstandard.ZstdDecompressor()
    return decompressor


def _kind_name(part: Part) -> str:
    return PartKind(part.kind).name.lower() if part.kind in _KINDS else f"part of kind {part.kind}"


def encode_fields(fields: Mapping[str, Any]) -> bytes:
    """Derived fields as stored: msgpack, or ASCII JSON text where msgpack cannot hold them (it begins with `{`)."""
    try:
        return msgspec.msgpack.encode(fields)
    except (OverflowError, UnicodeEncodeError, TypeError, ValueError):
        return json.dumps(fields, default=str).encode("ascii")


def decode_fields(data: bytes) -> dict[str, Any]:
    """What `encode_fields` made.

    Raises:
        DamagedLog: it made something else.
    """
    try:
        fields = json.loads(data) if data[:1] == b"{" else msgspec.msgpack.decode(data)
    except (ValueError, RecursionError) as error:
        raise DamagedLog(f"a stored record cannot be decoded ({error}); its exchange can still be read.") from error
    if not isinstance(fields, dict):
        raise DamagedLog(f"a stored record is a {type(fields).__name__}; its exchange can still be read.")
    return fields


def open_record(data: bytes) -> tuple[dict[str, Any], tuple[str, str] | None]:
    """A RECORD part's derived fields, and the verifier invocation (id, name) that the exchange declares, if any."""
    fields = decode_fields(data)
    declaration = verifier_declaration(fields)
    fields.pop(VERIFIER_KEY, None)
    return fields, declaration


def open_exchange(parts: Sequence[tuple[Part, bytes]]) -> dict[str, Any]:
    """The exchange that was committed, from its parts and their bytes (as `open_part` returns them).

    Payloads that were given as bytes come back parsed; those that are not JSON leave their key null and come back as
    text under the raw key (bytes that are not UTF-8 escaped as \\xNN; the exact bytes stay readable).

    Raises:
        DamagedLog: the META part is missing or is not what this package stores.
    """
    texts = _texts(parts)
    meta = texts.get(PartKind.META)
    if meta is None:
        raise DamagedLog("an exchange lacks its META part (it may be damaged); its other parts can still be read.")
    return _rebuild(meta, texts)


def payloads_of(parts: Sequence[tuple[Part, bytes]]) -> dict[str, Any]:
    """The four payload values of an exchange, null where there is none."""
    values: dict[str, Any] = dict.fromkeys(PAYLOADS)
    _fill(values, _texts(parts))
    return values


def _texts(parts: Sequence[tuple[Part, bytes]]) -> dict[PartKind, Text]:
    texts: dict[PartKind, Text] = {}
    for part, data in parts:
        kind = _KINDS.get(part.kind)
        if kind is None:
            raise FormatError(
                f"an exchange has a part of kind {part.kind}, which this gym_capture does not know. Nothing was "
                "changed; read the directory with the version that wrote it."
            )
        texts[kind] = Text(data, part.flags)
    return texts


def _rebuild(meta: Text, texts: Mapping[PartKind, Text]) -> dict[str, Any]:
    exchange = _parsed_meta(meta)
    _fill(exchange, texts)
    return exchange


def _parsed_meta(meta: Text) -> dict[str, Any]:
    try:
        exchange = parse_json(meta.data)
    except ValueError as error:
        raise DamagedLog(f"an exchange's META part is not JSON ({error}); other parts can still be read.") from error
    if not isinstance(exchange, dict):
        raise DamagedLog("an exchange's META part is not an object; its other parts can still be read.")
    return exchange


def _fill(exchange: dict[str, Any], texts: Mapping[PartKind, Text]) -> None:
    for kind, key in _KEY_OF.items():
        text = texts.get(kind)
        if text is None:
            continue
        raw = kind in _RAW_KINDS
        if raw and text.flags & _BYTES:
            exchange[key] = _as_text(text.data)
            continue
        if not text.flags & _NOT_JSON:
            try:
                exchange[key] = parse_json(text.data)
                continue
            except ValueError:
                pass  # nested deeper than can be followed from here: as text, like what is no JSON
        exchange.setdefault(key, None)
        raw_key = key if raw else f"{key}_raw"
        if raw or PAYLOADS[raw_key] not in texts:
            exchange[raw_key] = _as_text(text.data)


def _as_text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")
