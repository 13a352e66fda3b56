"""The shape that other checks rely on."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_folder_of_modules_is_a_package() -> None:
    # import-linter does not see into a folder without __init__.py, so its contracts would hold there by default.
    folders = {path.parent for path in (ROOT / "gym_capture").rglob("*.py")}
    assert sorted(str(folder.relative_to(ROOT)) for folder in folders if not (folder / "__init__.py").is_file()) == []


def test_the_package_says_that_it_is_typed() -> None:
    assert (ROOT / "gym_capture" / "py.typed").is_file()
