"""Makes the pictures of the documents: `python -m tests.viewer.screenshots`."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.expected_conditions import presence_of_element_located
from selenium.webdriver.support.wait import WebDriverWait

from tests.cases import ROOT
from tests.reading.calls import Json, written
from tests.storage.owners import Batch
from tests.viewer.chromium import SIZE, chromium
from tests.viewer.pages import conversation, served

IMAGES = ROOT / "docs" / "images"
PAGES = {
    "overview": ("#/", "figure"),
    "list": ("#/rollouts?sort=tokens_out&descending=1", "#rows th"),
    "rollout": ("#/rollout/46-0", "#turns .turn"),
    "compare": ("#/compare?left=46-0&right=64-0", "#difference tbody"),
}
HEIGHTS = {"overview": 1310, "rollout": 1100}
MODELS = ("policy-7b-chat", "policy-7b-chat", "judge-70b")


def run(chance: random.Random) -> dict[str, list[Json]]:
    """Rollouts of about twenty minutes, with failures that come in a burst."""
    rollouts: dict[str, list[Json]] = {}
    for number in range(240):
        at = number * 5.0
        calls: list[Json] = []
        turns = conversation(f"planet {number}") * (1 + number % 3)
        for turn in turns[: 1 + chance.randrange(len(turns))]:
            took = chance.lognormvariate(0.3, 0.8)
            calls.append(
                turn
                | {
                    "model_call_id": f"{number}-{len(calls)}",
                    "started_at": 1_767_225_600.0 + at,
                    "completed_at": 1_767_225_600.0 + at + took,
                    "request": turn["request"] | {"model": MODELS[number % 3]},
                    "latency_ms": took * 1000,
                    "latency_ttft_ms": took * 1000 * chance.uniform(0.05, 0.3),
                }
            )
            if "choices" in turn["response"]:
                usage = {"prompt_tokens": chance.randrange(200, 4000), "completion_tokens": chance.randrange(20, 600)}
                model = MODELS[number % 3]
                calls[-1]["response"] = turn["response"] | {"model": model, "usage": usage}
            if "error_category" in turn and not 80 < number < 130:
                calls.pop()  # the rate limit is a matter of some minutes
            at += took * chance.choice((0.6, 1.1))
        rollouts[f"{number // 2}-{number % 2}"] = calls
    return rollouts


def pictures(driver: webdriver.Chrome, address: str, suffix: str) -> None:
    """One of each page."""
    for name, (place, wanted) in PAGES.items():
        driver.get("about:blank")
        driver.set_window_size(SIZE[0], HEIGHTS.get(name, SIZE[1]))
        driver.get(address + place)
        WebDriverWait(driver, 60).until(presence_of_element_located((By.CSS_SELECTOR, wanted)))
        driver.save_screenshot(str(IMAGES / f"viewer-{name}-{suffix}.png"))


def main() -> None:
    """Write them all."""
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="run-42-") as scratch:
        directory = Path(scratch) / "model-calls"
        open_claims = Batch().claim("119-1", 1).claim("119-0", 2).claim("60-0", 3).release("60-0", 3, "worker lost")
        written(directory, run(random.Random(7)), open_claims)
        with served(directory) as address:
            for suffix in ("light", "dark"):
                with chromium(Path(scratch) / suffix, dark=suffix == "dark") as driver:
                    pictures(driver, address, suffix)


if __name__ == "__main__":
    main()
