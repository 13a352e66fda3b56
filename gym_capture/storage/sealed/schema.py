"""The two Parquet schemas of a sealed dataset."""

from __future__ import annotations

from gym_capture.model.exchange import PAYLOADS
from gym_capture.model.rows import PartKind
from gym_capture.storage.sealed.arrow import pa
from gym_capture.storage.sealed.call_columns import CALL_COLUMNS

TEXTS: dict[str, PartKind] = {"meta": PartKind.META, **PAYLOADS}
"""The columns that hold an exchange's texts."""

FLAG_BITS = 4
"""Bits of `flags` for each kind of part, the lowest for kind 0."""

CALLS = pa.schema(
    [
        *CALL_COLUMNS,
        ("digest", pa.binary(16)),
        ("derivation", pa.int32()),
        ("flags", pa.int32()),
        ("record", pa.binary()),
        *((name, pa.binary()) for name in TEXTS),
    ]
)
"""One exchange a row, sorted by rollout, generation and call index.

Fields beside the derived ones: `digest`; `derivation`, the version that derived `record`; `flags`, the `PartFlag` bits
of its texts, four for each `PartKind`; the RECORD part; and the texts as they were captured, null where there is none.
"""

REASONS = pa.list_(pa.struct([("reason", pa.string()), ("count", pa.int64())]))

ROLLOUTS = pa.schema(
    [
        ("rollout_id", pa.string()),
        ("generation", pa.int64()),
        ("calls", pa.int64()),
        ("indexes", pa.int64()),
        ("incomplete", REASONS),
        ("outstanding", pa.int64()),
        ("late", pa.int64()),
        ("first_row", pa.int64()),
        ("raw_bytes", pa.int64()),
    ]
)
"""One generation of a rollout a row, in the order of its calls in the part: `first_row` of them and `calls` on.

`indexes`, `incomplete`, `outstanding` and `late` are as in `CapturedRollout` (null: not known to be incomplete).
"""
