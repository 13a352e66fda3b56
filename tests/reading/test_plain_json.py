"""JSON documents of whatever a query gives."""

from __future__ import annotations

import json
import math
from datetime import date

from gym_capture.reading.plain_json import json_document


def test_keys_are_the_same_whether_or_not_a_value_has_a_form() -> None:
    keys = {None: 1.0, True: 2.0, 3: 3.0, "x": 4.0}
    assert json.loads(json_document({**keys, "y": math.nan})) == {**json.loads(json_document(keys)), "y": None}


def test_keys_that_are_no_text_are_theirs() -> None:
    assert json.loads(json_document({date(2020, 1, 2): math.inf})) == {"2020-01-02": None}
