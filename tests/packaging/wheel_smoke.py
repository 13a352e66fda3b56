"""Builds the wheel, installs it into an environment of its own and tries it there.

`python -m tests.packaging.wheel_smoke`. No network: the build backend and the dependencies are those of the environment
that runs this. Exits with the first thing that is wrong.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tempfile
import tomllib
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VERSION: str = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]

# Runs inside the scratch environment. What it imports must come from there, not from the checkout.
INSIDE = """
import importlib, importlib.metadata, importlib.resources, importlib.util, pathlib, sys
import gym_capture
here = pathlib.Path(sys.prefix).resolve()
assert here in pathlib.Path(gym_capture.__file__).resolve().parents, gym_capture.__file__
assert importlib.resources.files("gym_capture").joinpath("py.typed").is_file(), "py.typed is missing"
assert importlib.metadata.version("gym-capture") == {version!r}, importlib.metadata.version("gym-capture")
for name in ("model", "storage", "service", "client"):
    if importlib.util.find_spec("gym_capture." + name):
        importlib.import_module("gym_capture." + name)
for name in getattr(gym_capture, "__all__", ()):
    getattr(gym_capture, name)
"""


def run(*command: str | Path, cwd: Path) -> str:
    ran = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
    )
    if ran.returncode != 0:
        raise SystemExit(f"wheel: {' '.join(map(str, command[:4]))} … failed ({ran.returncode}):\n{ran.stdout}")
    return ran.stdout


def build(into: Path) -> Path:
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", into, ROOT, cwd=into)
    (wheel,) = into.glob("*.whl")
    return wheel


def check_contents(wheel: Path) -> None:
    """Exactly the package's files as they lie in the checkout, and the metadata."""
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    package = ROOT / "gym_capture"
    lying = {
        str(path.relative_to(ROOT)) for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts
    }
    if packed != lying:
        raise SystemExit(
            f"wheel: not packed {sorted(lying - packed)}, packed beside the package {sorted(packed - lying)}"
        )


def install(wheel: Path, into: Path) -> Path:
    """Install into a new environment that finds its dependencies in ours; returns the environment's bin folder."""
    venv.EnvBuilder(with_pip=False, symlinks=True).create(into)
    scratch = sysconfig.get_paths(scheme="venv", vars={"base": str(into), "platbase": str(into)})
    python = Path(scratch["scripts"]) / "python"
    pip: list[str | Path] = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python]
    run(*pip, "install", "--no-index", "--no-deps", "--no-compile", wheel, cwd=into)
    # Behind the wheel in the search order, and without the path entry of our editable install, which is not followed.
    behind = Path(scratch["purelib"]) / "dependencies.pth"
    behind.write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return python.parent


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="gym-capture-wheel-") as scratch:
        folder = Path(scratch).resolve()
        wheel = build(folder)
        check_contents(wheel)
        scripts = install(wheel, folder / "env")
        run(scripts / "python", "-I", "-c", INSIDE.format(version=VERSION), cwd=folder)
        if (ROOT / "gym_capture" / "cli").is_dir():
            said = run(scripts / "gym-capture", "--help", cwd=folder)
            if "run" not in said:
                raise SystemExit(f"wheel: gym-capture --help does not teach 'run':\n{said}")
        sys.stdout.write(f"{wheel.name}: built, installed and tried\n")


if __name__ == "__main__":
    main()
