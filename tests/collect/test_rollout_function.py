"""The rollout function is checked before anything starts, and the error says what is wrong with it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gym_capture.collect.rollout_function import load_rollout_function
from gym_capture.errors import RolloutFunctionError

MODULE = """
import functools

async def rollout(row, session): return {"seen": row}
async def with_more(row, session, temperature=1.0): return None
async def one(row): return None
async def named(*, row, session): return None
def blocking(row, session): return None
number = 3

class Agent:
    async def __call__(self, row, session): return None
    async def method(self, row, session): return None

agent = Agent()
bound = functools.partial(with_more, temperature=0.0)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "user_agents.py").write_text(MODULE)
    (tmp_path / "user_broken.py").write_text("raise RuntimeError('no licence')")
    (tmp_path / "user_needs.py").write_text("import user_not_installed")
    before = list(sys.path)
    yield tmp_path
    sys.path[:] = before
    for name in [name for name in sys.modules if name.startswith("user_")]:
        del sys.modules[name]


@pytest.mark.parametrize("name", ["rollout", "with_more", "agent", "agent.method", "bound"])
async def test_coroutine_functions_of_row_and_session_are_taken(folder: Path, name: str) -> None:
    function = load_rollout_function(f"user_agents:{name}", (str(folder),))
    assert await function({"q": 1}, None) in ({"seen": {"q": 1}}, None)


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("user_agents", "not of the form package.module:function"),
        ("user_agents:", "not of the form"),
        (":rollout", "not of the form"),
        ("user_agent:rollout", "there is no module 'user_agent'"),
        ("user_agents.inner:rollout", "no module"),
        ("user_agents:rolout", "has no 'rolout' .* Did you mean rollout?"),
        ("user_agents:one", r"one\(row\) cannot be called with \(row, session\)"),
        ("user_agents:named", r"cannot be called with \(row, session\)"),
        ("user_agents:blocking", "is not async"),
        ("user_agents:number", "is a int; it must be an async def"),
        ("user_broken:rollout", "importing user_broken raised RuntimeError: no licence"),
        ("user_needs:rollout", "importing user_needs needs a module that is not here: 'user_not_installed'"),
    ],
)
def test_what_cannot_be_one_is_refused_with_the_reason(folder: Path, path: str, said: str) -> None:
    with pytest.raises(RolloutFunctionError, match=said):
        load_rollout_function(path, (str(folder),))


@pytest.mark.parametrize(
    ("path", "missing"),
    [("user_absent:rollout", True), ("user_absent.a.b:rollout", True), ("user_needs:rollout", False)],
)
def test_an_absent_module_is_told_from_one_that_fails(folder: Path, path: str, missing: bool) -> None:
    with pytest.raises(RolloutFunctionError) as caught:
        load_rollout_function(path, (str(folder),))
    assert caught.value.missing_module is missing
