"""The documents hold together: links lead somewhere, snippets are Python, nothing names one developer's machine."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)")
SNIPPET = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
FENCED = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
TOP_LEVEL_AWAIT = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
# Put together here so that this file does not match itself.
MACHINE_PATH = re.compile(r"(?<![\w.~-])/(?:work/|root/|farm/|tmp/bash" + r"_jobs|home/\w+/)")


def documents() -> list[Path]:
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def anchors(markdown: str) -> set[str]:
    """The fragment of each heading, as GitHub makes it: lower case, punctuation dropped, blanks to hyphens."""
    headings = re.findall(r"^#+ +(.*?) *#*$", FENCED.sub("", markdown), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(document: Path) -> list[str]:
    """Relative links of a document that lead to no file, or to no heading of a document."""
    broken = []
    for link in LINK.findall(FENCED.sub("", document.read_text(encoding="utf-8"))):
        if re.match(r"[a-z][a-z+.-]*:", link):
            continue
        path, _, fragment = link.partition("#")
        target = document.parent / path if path else document
        known = target.exists() and (
            not fragment or target.suffix != ".md" or fragment in anchors(target.read_text(encoding="utf-8"))
        )
        if not known:
            broken.append(link)
    return broken


def machine_paths(name: str, text: str) -> list[str]:
    return [
        f"{name}:{number}: {line.strip()}"
        for number, line in enumerate(text.splitlines(), 1)
        if MACHINE_PATH.search(line)
    ]


def committed_files() -> list[str]:
    try:
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, timeout=60, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"not a git checkout: {error}")
    return [name for name in listed.stdout.decode().split("\0") if name]


@pytest.mark.parametrize("document", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_every_relative_link_leads_somewhere(document: Path) -> None:
    assert broken_links(document) == []


@pytest.mark.parametrize("document", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_every_python_snippet_compiles(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    for found in SNIPPET.finditer(text):
        line = text.count("\n", 0, found.start(1))
        # A snippet may await at its top, as at the asyncio prompt; the blank lines keep line numbers true.
        compile("\n" * line + found[1], str(document), "exec", flags=TOP_LEVEL_AWAIT)


def test_no_committed_file_names_a_developers_machine() -> None:
    found = []
    for name in committed_files():
        path = ROOT / name
        if path.is_file():  # a file may be deleted and not yet committed so
            found += machine_paths(name, path.read_text(encoding="utf-8", errors="replace"))
    assert found == []


def test_a_machine_path_is_found_and_a_part_of_another_path_is_not() -> None:
    folder = "/" + "work/"
    assert machine_paths("a.py", f"x = 1\nopen('{folder}main/x')") == [f"a.py:2: open('{folder}main/x')"]
    assert machine_paths("a.py", f"open('/srv{folder}x'); open('run{folder}x')") == []


def test_a_link_to_nothing_is_found(tmp_path: Path) -> None:
    document = tmp_path / "a.md"
    document.write_text(
        "# One two\n[here](#one-two) [there](b.md) [gone](#three) [web](https://example.org/x)\n```\n[code](c.md)\n```\n",
        encoding="utf-8",
    )
    assert broken_links(document) == ["b.md", "#three"]
