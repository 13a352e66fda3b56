"""Names and settings that two starts of one run have to agree on."""

from __future__ import annotations

from pathlib import Path

from gym_capture.actor.naming import default_actor_name, differing_keys, owner_settings
from gym_capture.config import load_config


def test_two_ways_to_one_directory_give_one_name(tmp_path: Path) -> None:
    real = tmp_path / "captures of run 42"
    real.mkdir()
    (tmp_path / "link").symlink_to(real)
    name = default_actor_name(real)
    assert name == default_actor_name(str(tmp_path / "link"))
    assert name.startswith("capture-captures_of_run_42-")


def test_directories_of_one_basename_have_names_of_their_own(tmp_path: Path) -> None:
    assert default_actor_name(tmp_path / "a" / "calls") != default_actor_name(tmp_path / "b" / "calls")


def test_settings_differ_by_the_keys_of_the_configuration() -> None:
    ours = owner_settings(load_config({}))
    theirs = owner_settings(load_config({}, ["capture.lease_s=9", "capture.placement.resources={disk: 1}"]))
    assert differing_keys(ours, theirs) == ["capture.lease_s", "capture.placement.resources"]
    assert differing_keys(ours, dict(ours)) == []


def test_what_only_clients_use_is_no_owner_setting() -> None:
    ours = owner_settings(load_config({}))
    theirs = owner_settings(load_config({}, ["capture.patience_s=1", "collect.workers=9", "capture.transport=ray"]))
    assert differing_keys(ours, theirs) == []


def test_what_is_redacted_is_agreed_on_because_other_clients_learn_it_from_the_owner() -> None:
    ours = owner_settings(load_config({}))
    theirs = owner_settings(load_config({}, ["capture.redact.patterns=['sk-[a-z]+']"]))
    assert differing_keys(ours, theirs) == ["capture.redact.patterns"]
