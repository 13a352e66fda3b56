"""The page in headless Chromium: what a person sees and does. One browser for the file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from selenium import webdriver
from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

from tests.reading.calls import chat, user, written
from tests.storage.owners import Batch
from tests.viewer.chromium import chromium, is_installed
from tests.viewer.pages import HOSTILE, HOSTILE_SHOWN, LiveRun, conversation, served

T = TypeVar("T")
WITHIN_S = 60.0
"""A generous bound: the machine may be busy."""

MANY = 120


class Page:
    """A browser that shows the viewer.

    Args:
        driver: the browser.
    """

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def until(self, seen: Callable[[], T]) -> T:
        """Wait until something is so; what it gives."""
        ignored = (NoSuchElementException, StaleElementReferenceException)
        wait = WebDriverWait(self.driver, WITHIN_S, poll_frequency=0.05, ignored_exceptions=ignored)
        found: T = wait.until(lambda _: seen())
        return found

    def find(self, css: str) -> WebElement:
        return self.until(lambda: self.driver.find_element(By.CSS_SELECTOR, css))

    def texts(self, css: str) -> list[str]:
        script = "return [...document.querySelectorAll(arguments[0])].map((each) => each.textContent)"
        found: list[str] = self.driver.execute_script(script, css)
        return found

    def see(self, css: str, *wanted: str) -> None:
        """Wait until the elements have exactly these texts."""
        try:
            self.until(lambda: self.texts(css) == list(wanted))
        except Exception:
            assert self.texts(css) == list(wanted)
            raise

    def see_some(self, css: str) -> None:
        """Wait until there is such an element."""
        self.until(lambda: self.texts(css))

    def see_in(self, css: str, *wanted: str) -> None:
        """Wait until an element has all these in its text."""
        self.until(lambda: all(each in self.find(css).text for each in wanted))

    def keys(self, *keys: str) -> None:
        """Press keys where the focus is."""
        self.driver.switch_to.active_element.send_keys(*keys)

    @property
    def focused(self) -> str:
        return self.driver.switch_to.active_element.text


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    if not is_installed() and not os.environ.get("GYM_CAPTURE_REQUIRE_BROWSER"):
        pytest.skip("chromium and chromedriver are not installed; CONTRIBUTING.md says how they are")
    with chromium(tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.fixture
def page(browser: webdriver.Chrome) -> Iterator[Page]:
    browser.get_log("browser")  # type: ignore[no-untyped-call]
    yield Page(browser)
    told = [entry["message"] for entry in browser.get_log("browser")]  # type: ignore[no-untyped-call]
    # A refused request shows on the page; any other message is an error of the page's own, a broken policy among them.
    wrong = [each for each in told if "Failed to load resource" not in each]
    browser.get("about:blank")
    assert wrong == []


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a run with many rollouts; the first has the conversation."""
    directory = tmp_path_factory.mktemp("run") / "captures"
    rollouts = {f"task-{number:03d}": [chat(str(number), [user("hi")], at=number)] for number in range(1, MANY)}
    written(directory, {"task-000": conversation("0"), **rollouts}, Batch().claim("task-007", 1))
    with served(directory) as address:
        yield address


def test_the_overview_draws_the_run(page: Page, run: str) -> None:
    page.driver.get(run)
    page.see_in("#live", "live")
    page.see_in(".tiles", f"rollouts\n{MANY}", f"calls\n{MANY + 2}", "failed\n1", "open claims\n1")
    assert page.texts("figcaption") == [
        "Calls over time",
        "Tokens over time",
        "Latency",
        "Time to first token",
        "Rollouts by status",
        "Errors by category",
        "Rollouts with gaps",
        "Rollouts by model",
        "Oldest open claims",
    ]
    assert len(page.driver.find_elements(By.CSS_SELECTOR, "figure svg rect.calls")) > 20
    page.find('a[href="#/rollouts?status=open"]').click()
    page.see("#rows th", "task-007")


def test_the_list_is_paged_searched_filtered_and_sorted(page: Page, run: str) -> None:
    page.driver.get(f"{run}#/rollouts")
    page.see("#told", f"1 to 50 of {MANY} rollouts")
    page.find("#next").click()
    page.see("#told", f"51 to 100 of {MANY} rollouts")
    page.keys("n")
    page.see("#told", f"101 to {MANY} of {MANY} rollouts")
    assert page.find("#next").get_attribute("disabled") is not None
    page.keys("/", "task-01")
    page.see("#told", f"1 to 10 of 10 rollouts that fit, {MANY} known")
    page.keys(Keys.ESCAPE)
    page.driver.get(f"{run}#/")
    page.driver.get(f"{run}#/rollouts")
    page.find("#only-errors").click()
    page.see("#rows th", "task-000")
    page.find("#only-errors").click()
    page.find('[data-key="sort/calls"]').click()
    page.until(lambda: page.texts("#rows th")[:2] == ["task-000", "task-001"])
    assert page.find('th[aria-sort="descending"]').text == "calls ↓"


def test_it_is_used_by_keyboard_alone(page: Page, run: str) -> None:
    page.driver.get(f"{run}#/")
    page.find(".tiles")
    page.keys("l")
    page.see("#told", f"1 to 50 of {MANY} rollouts")
    page.keys("j")
    assert page.focused == "task-000"
    page.keys(Keys.ARROW_DOWN, "j")
    assert page.focused == "task-002"
    page.keys("k", "k", Keys.ENTER)
    page.see_in("h2", "task-000")
    page.find("#call-2")
    page.keys("j", "j")
    assert page.focused == "call 1"
    page.keys("o")
    page.see_in("h2", "Overview")


def test_a_rollouts_timeline_and_conversation(page: Page, run: str) -> None:
    page.driver.get(f"{run}#/rollout/task-000")
    page.see("#timeline .bar .label", "0", "1", "2")
    tops = [bar.get_attribute("y") for bar in page.driver.find_elements(By.CSS_SELECTOR, ".bar > rect:not(.first)")]
    assert tops[0] == tops[1] != tops[2]
    assert page.texts("#call-0 .added .who") == ["system  ", "user  "]
    assert page.texts("#call-0 .answered .who") == ["assistant reasoning ", "assistant calls tool look"]
    assert page.texts("#call-1 .added pre") == ["blue "]
    assert page.texts("#call-2 .warn") == [
        "Failed: rate_limit",
        "Ran beside call 1",
        "The same history as call 1: 4 messages, nothing added",
    ]
    page.driver.execute_script("document.querySelector('.bar[tabindex=\"0\"]').focus()")
    page.keys(Keys.ARROW_RIGHT)
    page.keys(Keys.ARROW_RIGHT)
    page.keys(Keys.ENTER)
    page.until(lambda: page.driver.switch_to.active_element.get_attribute("id") == "call-2")
    page.find("#call-2 button").click()
    page.until(lambda: any('"error": "slow down"' in text for text in page.texts("#call-2 .raw pre")))
    assert page.driver.current_url.endswith("#/rollout/task-000")


def test_two_rollouts_side_by_side(page: Page, run: str) -> None:
    page.driver.get(f"{run}#/rollout/task-000")
    page.find("h2 .aside").click()
    page.until(lambda: page.driver.switch_to.active_element.get_attribute("id") == "right")
    page.keys("task-001", Keys.ENTER)
    page.see("#verdict", "They differ from place 0 on.")
    page.until(lambda: "only in task-000" in page.find("#difference").text)
    page.find("#difference tbody button").click()
    page.until(lambda: len(page.driver.find_elements(By.CSS_SELECTOR, ".sides .turn")) == 2)


def test_what_is_written_meanwhile_appears_and_what_was_opened_stays(page: Page, tmp_path: Path) -> None:
    live = LiveRun(tmp_path / "captures")
    live.commit("r", chat("1", [user("first question")]))
    with served(live.directory) as address:
        page.driver.get(f"{address}#/rollout/r")
        page.see("#turns h4", "call 0")
        page.find("#call-0 button").click()
        page.until(lambda: page.texts("#call-0 .raw pre"))
        live.commit("r", chat("2", [user("second question")], at=4))
        page.see("#turns h4", "call 0", "call 1")
        assert len(page.texts("#call-0 .raw pre")) == 2
        page.driver.get(f"{address}#/rollouts")
        page.see("#rows th", "r")
        page.keys("j")
        live.commit("q", chat("3", [user("another")]))
        page.see("#rows th", "q", "r")
        assert page.focused == "r"
        aside = live.directory.with_name("aside")
        live.directory.rename(aside)
        page.see_in("#trouble", str(live.directory))
        assert page.texts("#rows th") == ["q", "r"]
        aside.rename(live.directory)
        page.until(lambda: not page.find("#trouble").is_displayed())
    page.see_in("#trouble", "does not answer")
    live.stop()


def test_hostile_text_is_text(page: Page, tmp_path: Path) -> None:
    calls = conversation("0", HOSTILE)
    calls[0]["response"]["model"] = calls[1]["request"][HOSTILE] = HOSTILE
    calls[0]["response"]["choices"][0]["message"]["tool_calls"][0]["function"]["name"] = HOSTILE
    calls[2]["error_category"] = HOSTILE
    written(tmp_path / "captures", {"r": calls})
    with served(tmp_path / "captures") as address:
        for place, css in (
            ("#/", "figure th"),
            ("#/rollouts", "#rows .names"),
            ("#/rollout/r", "#turns pre"),
            ("#/compare?left=r&right=r", "#verdict"),
        ):
            page.driver.get(address + place)
            page.find(css)
            assert page.driver.find_elements(By.CSS_SELECTOR, "main img, main script, main iframe") == []
            assert page.driver.execute_script("return window.owned") is None
        page.driver.get(f"{address}#/rollout/r")
        page.until(lambda: page.texts("#call-1 .added pre") == [f"blue {HOSTILE_SHOWN}"])
        for number in range(3):
            page.find(f"#call-{number} button").click()
            page.see_some(f"#call-{number} .raw pre")
        assert "\u202e" not in "".join(page.texts("body"))
        assert "\x1b" not in "".join(page.texts("body"))
        assert page.driver.execute_script("return window.owned") is None


def test_the_browser_itself_refuses_markup_from_text(page: Page, run: str) -> None:
    page.driver.get(run)
    page.find(".tiles")
    script = "try { document.body.innerHTML = '<b>x</b>'; return 'made'; } catch (error) { return error.name; }"
    assert page.driver.execute_script(script) == "TypeError"
    page.driver.get_log("browser")  # type: ignore[no-untyped-call]
