"""The table of targets says what was reached, and what was not measured."""

from __future__ import annotations

from benchmarks.target_run import targets
from benchmarks.targets import ELSEWHERE, Target, Value, lines, markdown

CASES = {"case": {"ours": {"per_second": 30.0, "ms": 1.5}, "theirs": {"per_second": 10.0, "ms": 0.0}}}
OURS, THEIRS = Value("case", "ours", "per_second"), Value("case", "theirs", "per_second")


def told(target: Target) -> tuple[str, str, str]:
    [line] = lines(CASES, [target])
    return line.target, line.measured, line.met


def test_a_ratio_is_met_from_its_bound_on() -> None:
    assert told(Target("w", 3, "×", OURS, THEIRS)) == ("≥ 3×", "3×", "yes")
    assert told(Target("w", 3.1, "×", OURS, THEIRS)) == ("≥ 3.1×", "3×", "no")


def test_a_limit_is_met_up_to_its_bound() -> None:
    took = Value("case", "ours", "ms")
    assert told(Target("w", 1.5, "ms", took, at_most=True)) == ("≤ 1.5 ms", "1.5 ms", "yes")
    assert told(Target("w", 1.4, "ms", took, at_most=True)) == ("≤ 1.4 ms", "1.5 ms", "no")


def test_what_was_not_measured_is_neither_met_nor_missed() -> None:
    assert told(Target("w", 1, "×", Value("other", "ours", "ms"), THEIRS)) == ("≥ 1×", "not measured", "")
    assert told(Target("w", 1, "×", OURS, Value("case", "theirs", "ms"))) == ("≥ 1×", "not measured", "")
    assert told(Target("w", 5, "s", at_most=True, command="make x")) == ("≤ 5 s", "`make x`", "")


def test_the_markdown_is_a_table_with_its_conditions() -> None:
    text = markdown(lines(CASES, [Target("work", 3, "×", OURS, THEIRS)]), {"cores": "2"})
    assert text.splitlines() == [
        "| work | target | measured | met? |",
        "| --- | --- | --- | --- |",
        "| work | ≥ 3× | 3× | yes |",
        "",
        "| | |",
        "|---|---|",
        "| cores | 2 |",
    ]


def test_every_target_is_measured_here_or_says_where() -> None:
    assert [target.work for target in targets() if not target.measured] == [
        "owner memory per call at 1,000,000 calls",
        "open 1,000,000 calls to first accepted write",
    ]
    assert {target.command for target in targets()} == {"", ELSEWHERE}
    assert len({target.work for target in targets()}) == len(targets()) == 24
