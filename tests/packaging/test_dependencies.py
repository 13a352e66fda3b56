"""What the package imports is declared, what is declared is locked and explained, and the lock names no registry."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
RUNTIME = [Requirement(line) for line in PROJECT["dependencies"]]
EXTRAS = {
    name: [requirement for line in lines if (requirement := Requirement(line)).name != PROJECT["name"]]
    for name, lines in PROJECT["optional-dependencies"].items()
    if name != "dev"
}
USERS_EXTRAS = [
    requirement
    for name in ("proxy", "view", "httpx", "openai", "anthropic", "otel", "parquet", "frames")
    for requirement in EXTRAS[name]
]
DEVELOPMENT = [
    requirement
    for line in PROJECT["optional-dependencies"]["dev"]
    if (requirement := Requirement(line)).name != PROJECT["name"]
]
DEVELOPMENT += [
    requirement for requirement in USERS_EXTRAS if requirement.name not in {each.name for each in DEVELOPMENT}
]
LOCK = (ROOT / "requirements.lock").read_text(encoding="utf-8")
LOCKED = {
    canonicalize_name(name): Version(version)
    for name, version in re.findall(r"^([A-Za-z0-9._-]+)==([^ ;\\]+)", LOCK, re.MULTILINE)
}


OPTIONAL = {
    "gym_capture/storage/sealed/": {"pyarrow"},
    "gym_capture/storage/remote/": {"pyarrow"},
    "gym_capture/tables/": {"pyarrow", "duckdb"},
    "gym_capture/testing/": {"pytest"},
    "gym_capture/viewer/": {"uvicorn", "starlette"},
    "gym_capture/asgi/": {"uvicorn", "uvloop", "aiohttp", "yarl"},
    "gym_capture/collect/": {"openai", "anthropic"},
    "gym_capture/recording/": {"brotli"},
    "gym_capture/integrations/": {"httpx", "httpx2", "openai", "anthropic", "opentelemetry"},
    "gym_capture/examples/": {"openai", "anthropic", "uvicorn"},
}
"""What a folder may import because an extra of the package brings it."""


def imported_packages(source: str) -> Iterator[str]:
    """Top-level names that a module imports, wherever in it the import stands; relative imports aside."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.partition(".")[0]


def undeclared(sources: dict[str, str]) -> list[str]:
    """`file: package` for each import neither ours, nor the standard library's, nor of a declared dependency."""
    declared = {canonicalize_name(requirement.name) for requirement in RUNTIME}
    owners = packages_distributions()
    return sorted(
        f"{name}: {package}"
        for name, source in sources.items()
        for package in set(imported_packages(source))
        if package != "gym_capture"
        and not any(name.startswith(folder) and package in packages for folder, packages in OPTIONAL.items())
        and package not in sys.stdlib_module_names
        and declared.isdisjoint(canonicalize_name(owner) for owner in owners.get(package, [package]))
    )


def test_the_package_imports_only_what_it_declares() -> None:
    modules = (ROOT / "gym_capture").rglob("*.py")
    assert undeclared({str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in modules}) == []


def test_an_undeclared_import_is_named_even_inside_a_function() -> None:
    assert undeclared({"a.py": "import json, yaml\ndef f():\n    from no_such_package.linalg import norm\n"}) == [
        "a.py: no_such_package"
    ]


@pytest.mark.parametrize("requirement", [*RUNTIME, *DEVELOPMENT], ids=str)
def test_the_lock_satisfies_what_is_declared(requirement: Requirement) -> None:
    version = LOCKED.get(canonicalize_name(requirement.name))
    assert version is not None, "not locked: run make lock"
    assert requirement.specifier.contains(version), f"locked at {version}: run make lock"


def test_the_lock_pins_with_hashes_and_names_no_place() -> None:
    unhashed = [entry.split()[0] for entry in re.split(r"\n(?=\S)", LOCK) if "==" in entry and "--hash=" not in entry]
    assert unhashed == []
    assert re.findall(r"://|--index-url|--find-links|@ file", LOCK) == []


@pytest.mark.parametrize("requirement", [*RUNTIME, *DEVELOPMENT], ids=lambda requirement: requirement.name)
def test_every_dependency_has_its_reason_written_down(requirement: Requirement) -> None:
    reasons = (ROOT / "docs" / "decisions" / "0001-dependencies.md").read_text(encoding="utf-8")
    assert f"| {requirement.name} |" in reasons
