"""Headless Chromium, driven by selenium."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from selenium import webdriver

SIZE = (1300, 900)


def is_installed() -> bool:
    """Whether there is a browser, and what drives it."""
    return None not in (shutil.which("chromium"), shutil.which("chromedriver"))


@contextmanager
def chromium(profile: Path, *, dark: bool = False) -> Iterator[webdriver.Chrome]:
    """A browser of its own.

    Args:
        profile: an empty folder for what it keeps.
        dark: it says that its user likes dark pages.

    Raises:
        RuntimeError: it is not installed.
    """
    binary, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if binary is None or driver is None:
        raise RuntimeError("chromium and chromedriver are not installed; CONTRIBUTING.md says how they are")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--lang=en-US"):
        options.add_argument(argument)
    options.add_argument(f"--window-size={SIZE[0]},{SIZE[1]}")
    options.add_argument(f"--user-data-dir={profile}")
    if dark:
        options.add_argument("--force-dark-mode")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with webdriver.Chrome(options, webdriver.ChromeService(driver)) as started:
        yield started
