"""Hands the shares of `tests.sharing` to the processes of pytest-xdist."""

from __future__ import annotations

import pytest
from xdist.scheduler import LoadScopeScheduling

from tests.sharing import file_of, share_of


class ByFile(LoadScopeScheduling):  # type: ignore[misc]  # pytest-xdist brings no types
    """Hands out whole shares, in the order in which their tests were collected."""

    def __init__(self, config: pytest.Config, log: object) -> None:
        config.option.loadscopereorder = False
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        return share_of(file_of(nodeid))
