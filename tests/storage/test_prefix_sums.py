"""Checksums of ranges, from those of prefixes."""

from __future__ import annotations

import random

from gym_capture.model.codec import checksum
from gym_capture.storage.prefix_sums import PrefixSums


def test_any_range_sums_up_to_what_it_sums_up_to_alone() -> None:
    rng = random.Random(3)
    data = rng.randbytes(40_000)
    sums = PrefixSums(lambda at, n: data[at : at + n], 7)
    for _ in range(300):
        start = rng.randrange(7, len(data))
        end = rng.randrange(start, len(data) + 1)
        before = rng.randbytes(36)
        assert sums.continued(checksum(before), start, end) == checksum(before + data[start:end])
