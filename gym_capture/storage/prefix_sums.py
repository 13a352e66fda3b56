"""Checksums of any range of a file in little time, once its beginning was summed up.

A searched payload may look like heads of frames all over, each of which claims all the rest as its rows. To sum up each
claim anew takes quadratic time. A CRC is linear: that of a range follows from those of two prefixes.
"""

from __future__ import annotations

from collections.abc import Callable

import google_crc32c

STEP_BYTES = 4096
_POLYNOMIAL = 0x82F63B78


def _times(matrix: list[int], value: int) -> int:
    product, row = 0, 0
    while value:
        if value & 1:
            product ^= matrix[row]
        value >>= 1
        row += 1
    return product


def _one_zero_byte() -> list[int]:
    """What a zero byte makes of each bit of a checksum."""
    matrix = []
    for bit in range(32):
        value = 1 << bit
        for _ in range(8):
            value = (value >> 1) ^ (_POLYNOMIAL if value & 1 else 0)
        matrix.append(value)
    return matrix


_powers = [_one_zero_byte()]
"""What 1, 2, 4, … zero bytes make of each bit."""


def shifted(crc: int, zeros: int) -> int:
    """The share of `crc` in the checksum of its data followed by so many other bytes."""
    power = 0
    while zeros:
        while power >= len(_powers):
            last = _powers[-1]
            _powers.append([_times(last, row) for row in last])
        if zeros & 1:
            crc = _times(_powers[power], crc)
        zeros >>= 1
        power += 1
    return crc


class PrefixSums:
    """CRC-32C of the bytes from `start` to any later place of a file.

    Args:
        read: (offset, length) → bytes of the file.
        start: where the sums begin.
    """

    def __init__(self, read: Callable[[int, int], bytes], start: int) -> None:
        self._read = read
        self._start = start
        self._sums = [0]

    def upto(self, end: int) -> int:
        """The checksum of the bytes from the start to `end`."""
        steps, rest = divmod(end - self._start, STEP_BYTES)
        while len(self._sums) <= steps:
            at = self._start + (len(self._sums) - 1) * STEP_BYTES
            self._sums.append(int(google_crc32c.extend(self._sums[-1], self._read(at, STEP_BYTES))))
        return int(google_crc32c.extend(self._sums[steps], self._read(self._start + steps * STEP_BYTES, rest)))

    def continued(self, crc: int, start: int, end: int) -> int:
        """The checksum of data with the checksum `crc`, followed by the bytes between two places."""
        return self.upto(end) ^ shifted(crc ^ self.upto(start), end - start)
