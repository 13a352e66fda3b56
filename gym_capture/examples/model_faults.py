"""What goes wrong at the example's model server: by chance, from one seed, or because a request asks for it.

The header `x-script-fault` asks: a fault's name, `none` for no fault, or `name*2` for the first two tries (an SDK says
in `x-stainless-retry-count` which try it is).
"""

from __future__ import annotations

import random
from collections.abc import Mapping

FAULT_HEADER = "x-script-fault"
SEED_HEADER = "x-script-seed"
"""Text that is mixed into what a request's chance follows from, so that equal requests may fare differently."""
RETRY_HEADER = "x-stainless-retry-count"

RATE_LIMITED = "rate_limited"
BROKEN = "broken"
CONTEXT = "context_length"
HANGS = "hangs"
SLOW = "slow"
CUT = "cut"
ERROR_EVENT = "error_event"
TOO_LONG = "too_long"

FAULTS = (RATE_LIMITED, BROKEN, CONTEXT, HANGS, SLOW, CUT, ERROR_EVENT, TOO_LONG)
"""429; 500; 400 for a context that is too long; no answer at all; a late first token; a response that ends in its
middle; an error event in a stream (500 without one); an answer that runs out of tokens."""

USUAL = {RATE_LIMITED: 0.06, BROKEN: 0.04, CUT: 0.04, ERROR_EVENT: 0.02, TOO_LONG: 0.03, HANGS: 0.02, SLOW: 0.05}
"""How likely each is by default, per request."""


def check_likelihoods(faults: Mapping[str, float]) -> None:
    """Raises:
    ValueError: an unknown fault, or likelihoods that are no probabilities.
    """
    unknown = sorted(set(faults) - set(FAULTS))
    if unknown:
        raise ValueError(f"no such fault: {', '.join(unknown)}; there are {', '.join(FAULTS)}")
    if any(not 0.0 <= each <= 1.0 for each in faults.values()) or sum(faults.values()) > 1.0:
        raise ValueError("the faults' likelihoods must lie between 0 and 1, and so must their sum")


def chosen_fault(headers: Mapping[str, str], faults: Mapping[str, float], chance: random.Random) -> str | None:
    """The fault of one request, or None.

    Raises:
        ValueError: the header asks for something that is no fault.
    """
    by_chance = chance.choices([None, *faults], [1.0 - sum(faults.values()), *faults.values()])[0]
    asked = headers.get(FAULT_HEADER)
    if asked is None:
        return by_chance
    name, _, tries = asked.partition("*")
    if name == "none":
        return None
    if name not in FAULTS or (tries and not tries.isdecimal()):
        raise ValueError(f"{FAULT_HEADER}: {asked!r} is not one of {', '.join(FAULTS)}, none, or <fault>*<tries>")
    return name if not tries or retries_taken(headers) < int(tries) else None


def retries_taken(headers: Mapping[str, str]) -> int:
    """Which retry of an SDK's a request is, 0 for the first try."""
    count = headers.get(RETRY_HEADER, "")
    return int(count) if count.isdecimal() else 0
