"""`python -m tests.limits`: memory and time at the limits, at full size, printed.

`--calls`, `--claims`, `--waiters` take other sizes.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from tests.limits.hostile import cases
from tests.limits.linear_time import is_linear, times
from tests.limits.memory import a_disk_that_stands_still, bytes_per_call, bytes_per_open_claim, bytes_per_waiter


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.limits")
    parser.add_argument("--calls", type=int, default=1_000_000)
    parser.add_argument("--claims", type=int, default=100_000)
    parser.add_argument("--waiters", type=int, default=10_000)
    given = parser.parse_args()
    per_claim = asyncio.run(bytes_per_open_claim(given.claims))
    say(f"{given.claims:>9,} open claims      {per_claim:8.0f} bytes each in the owner")
    per_waiter = asyncio.run(bytes_per_waiter(given.waiters))
    say(f"{given.waiters:>9,} waiters          {per_waiter:8.0f} bytes each at both ends")
    pressure = asyncio.run(a_disk_that_stands_still(256, 16, 65_536, 16 << 20))
    say(
        f"{pressure.given:>9,} exchanges of 64 KB while the disk stands still, 256 at a time, 16 MiB of buffer: "
        f"{pressure.in_buffer / 2**20:.1f} MiB in the buffer, {pressure.in_all / 2**20:.1f} MiB in all at both ends, "
        f"{pressure.landed:,} on disk at the end",
    )
    with tempfile.TemporaryDirectory() as folder:
        slow = []
        for case in cases(Path(folder)):
            small, large = times(case)
            slow += [] if is_linear(small, large) else [case.name]
            say(f"{case.name:<36} {small * 1e3:9.2f} ms  {large * 1e3:9.2f} ms for ten times as much")
    owner, reader = asyncio.run(bytes_per_call(given.calls))
    say(f"{given.calls:>9,} captured calls   {owner:8.0f} bytes each in the owner, {reader:.0f} in a reader")
    say("not linear: " + (", ".join(slow) or "none"))
    return 1 if slow else 0


if __name__ == "__main__":
    raise SystemExit(main())
