"""All faults, by name."""

from __future__ import annotations

from tests.crash.lab import disk_faults, process_faults, user_faults
from tests.crash.lab.fault_registry import FAULTS

NODE_FAULTS = process_faults.NODE_FAULTS

__all__ = ["FAULTS", "NODE_FAULTS", "disk_faults", "process_faults", "user_faults"]
