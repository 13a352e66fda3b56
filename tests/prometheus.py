"""The real Prometheus, where it is installed (Debian's package `prometheus` has both programs)."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import threading
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest

REQUIRE = "GYM_CAPTURE_REQUIRE_PROMETHEUS"
"""Set: the tests that need it fail where it is absent, as in .ci/run."""

START_S = 30.0


def program(name: str) -> str:
    """The path of a program of Prometheus; the test skips where there is none."""
    found = shutil.which(name)
    if found is None:
        if os.environ.get(REQUIRE):
            pytest.fail(f"{REQUIRE} is set, and {name} is not installed (apt-get install prometheus)")
        pytest.skip(f"{name} is not installed (apt-get install prometheus)")
    return found


def promtool() -> str:
    """The path of promtool."""
    return program("promtool")


class Prometheus:
    """A server on a free port of the loopback, its data in a folder of its own. A context manager.

    Args:
        folder: for configuration and data.
        target: host and port to scrape, four times a second.
        rules: the rules' file.
    """

    def __init__(self, folder: Path, target: str, rules: Path) -> None:
        self._binary = program("prometheus")
        self._folder = folder
        self._config = {
            "global": {"scrape_interval": "250ms", "scrape_timeout": "250ms", "evaluation_interval": "250ms"},
            "rule_files": [str(rules)],
            "scrape_configs": [{"job_name": "ray", "static_configs": [{"targets": [target]}]}],
        }
        self._said: list[str] = []
        self._listening = threading.Event()
        self._url = ""

    def __enter__(self) -> Prometheus:
        config = self._folder / "prometheus.json"
        config.write_text(json.dumps(self._config), encoding="utf-8")
        arguments = ["--web.listen-address=127.0.0.1:0", f"--storage.tsdb.path={self._folder / 'data'}"]
        self._process = subprocess.Popen(
            [self._binary, f"--config.file={config}", *arguments],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if not self._listening.wait(START_S) or not self._url:
            self.__exit__()
            pytest.fail("Prometheus did not start:\n" + "".join(self._said))
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        assert self._process.stderr is not None
        self._process.stderr.close()

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._said.append(line)
            found = re.search(r'msg="Listening on" address=(\S+)', line)
            if found:
                self._url = f"http://{found[1]}"
                self._listening.set()
        self._listening.set()

    def get(self, path: str, **arguments: str) -> Any:
        """The data of an answer of its API; None while it starts. A refused expression fails the test."""
        url = f"{self._url}/api/v1/{path}?{urllib.parse.urlencode(arguments)}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            if error.code == 503:
                return None
            raise AssertionError(f"{arguments}: {error.read().decode()}") from error

    def query(self, expression: str) -> Any:
        """The result of an expression now; None while it starts."""
        found = self.get("query", query=expression)
        return found and found["result"]

    def evaluated(self) -> int:
        """How many rules were evaluated; one that could not be fails the test."""
        found = self.get("rules") or {"groups": []}
        rules = [rule for group in found["groups"] for rule in group["rules"]]
        assert [rule["lastError"] for rule in rules if rule["health"] == "err"] == []
        return sum(rule["health"] == "ok" for rule in rules)
