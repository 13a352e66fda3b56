"""Configuration: what is set is taken, what is not known is named, and nothing is chosen in silence."""

from __future__ import annotations

import re
import traceback
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from gym_capture.config import CaptureConfig, CaptureSettings, EndpointConfig, PlacementConfig, all_keys, load_config
from gym_capture.errors import ConfigError
from gym_capture.model.client_settings import ClientSettings
from gym_capture.model.redaction_rules import RedactionRules

CONFIGS = Path(__file__).resolve().parents[1] / "configs"


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_defaults_are_the_documented_ones() -> None:
    config = load_config({})
    assert config == CaptureConfig()
    assert config.observability_enabled is True
    assert config.model_call_capture_dir is None
    assert config.capture.lease_s == 6.0
    assert config.capture.drain_timeout_s == 10.0
    assert config.capture.patience_s == 120.0
    assert config.capture.max_exchange_bytes == 67108864
    assert config.capture.max_batch_bytes == 4194304
    assert config.capture.client_buffer_bytes == 268435456
    assert config.capture.owner_buffer_bytes == 1073741824
    assert config.capture.endpoint == EndpointConfig(host="node", port=0)
    assert config.capture.placement == PlacementConfig(node="driver", resources={})
    assert config.ray.address == "local"
    assert (config.collect.workers, config.collect.concurrency, config.collect.retries) == (4, 64, 1)
    assert config.collect.require_complete is False


def test_a_file_is_read_and_overrides_win_in_order(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "observability_enabled: false\nmodel_call_capture_dir: /shared/run\n"
        "capture: {lease_s: 3, endpoint: {port: 7000}, placement: {resources: {capture: 1}}}\n",
    )
    config = load_config(
        str(path),
        [
            "capture.lease_s=4",
            "capture.lease_s=5.5",
            "capture.endpoint.host=10.0.0.1",
            "capture.placement.resources.disk=0.5",
            "collect.rollout=package.module:function",
            "ray.runtime_env={env_vars: {A: '1'}}",
            "capture.name=null",
            "collect.limit=",
        ],
    )
    assert config.observability_enabled is False
    assert config.directory == Path("/shared/run")
    assert config.capture.lease_s == 5.5
    assert config.capture.endpoint == EndpointConfig(host="10.0.0.1", port=7000)
    assert config.capture.placement.resources == {"capture": 1.0, "disk": 0.5}
    assert config.collect.rollout == "package.module:function"
    assert config.ray.runtime_env == {"env_vars": {"A": "1"}}
    assert (config.capture.name, config.collect.limit) == (None, None)


def test_a_mapping_is_not_changed_by_overrides() -> None:
    source: dict[str, Any] = {"capture": {"endpoint": {"port": 1}}}
    assert load_config(source, ["capture.endpoint.port=2"]).capture.endpoint.port == 2
    assert source == {"capture": {"endpoint": {"port": 1}}}


def test_a_validated_configuration_can_be_overridden() -> None:
    config = CaptureConfig(capture=CaptureSettings(lease_s=2))
    changed = load_config(config, ["capture.endpoint.port=80"])
    assert (changed.capture.lease_s, changed.capture.endpoint.port) == (2, 80)
    assert load_config(config) == config
    assert load_config({"capture": CaptureSettings(lease_s=2)}, ["capture.patience_s=1"]).capture.lease_s == 2


@pytest.mark.parametrize("text", ["", "# nothing\n", "capture:\ncollect:\n  # workers: 4\n", "capture: {endpoint: }"])
def test_empty_files_and_sections_change_nothing(tmp_path: Path, text: str) -> None:
    path = write(tmp_path, text)
    assert load_config(path) == CaptureConfig()
    assert load_config(path, ["capture.endpoint.port=9"]).capture.endpoint.port == 9


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("observability_enable", "did you mean observability_enabled?"),
        ("model_call_capture_directory", "did you mean model_call_capture_dir?"),
        ("captur", "did you mean capture?"),
        ("capture.leases_s", "did you mean capture.lease_s?"),
        ("capture.endpoint.prot", "did you mean capture.endpoint.port?"),
        ("collect.worker", "did you mean collect.workers?"),
        ("ray.adress", "did you mean ray.address?"),
        ("lease_s", "did you mean capture.lease_s?"),
        ("concurrency", "did you mean collect.concurrency?"),
        ("ray.zzzzqqqq", "known keys are ray.address, ray.num_cpus, ray.runtime_env"),
    ],
)
def test_an_unknown_key_is_refused_and_the_nearest_one_named(key: str, nearest: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_config({}, [f"{key}=1"])
    assert str(refused.value) == f"unknown key {key}; {nearest}"
    nested: Any = 1
    for name in reversed(key.split(".")):
        nested = {name: nested}
    with pytest.raises(ConfigError, match="unknown key"):
        load_config(nested)


def test_a_key_that_is_no_text_is_unknown(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown key 1;"):
        load_config(write(tmp_path, "1: x"))


@pytest.mark.parametrize(
    ("override", "where"),
    [
        ("capture.lease_s=0", "capture.lease_s: .*greater than 0.*given 0"),
        ("capture.lease_s=.nan", "capture.lease_s"),
        ("capture.lease_s=.inf", "capture.lease_s: .*finite number.*given inf"),
        ("capture.drain_timeout_s=.inf", "capture.drain_timeout_s: .*finite number"),
        ("capture.patience_s=.inf", "capture.patience_s: .*finite number"),
        ("capture.placement.resources={disk: .nan}", r"capture.placement.resources.disk: .*finite number"),
        ("collect.rollout_timeout_s=.inf", "collect.rollout_timeout_s: .*finite number"),
        ("collect.stop_grace_s=.inf", "collect.stop_grace_s: .*finite number"),
        ("collect.worker_resources={gpu: .inf}", r"collect.worker_resources.gpu: .*finite number"),
        ("collect.worker_num_cpus=.inf", "collect.worker_num_cpus: .*finite number"),
        ("capture.lease_s=soon", "capture.lease_s: .*given 'soon'"),
        ("capture.drain_timeout_s=-1", "capture.drain_timeout_s"),
        ("capture.max_exchange_bytes=0", "capture.max_exchange_bytes"),
        ("capture.max_exchange_bytes=1000000000", "capture.max_exchange_bytes"),
        ("capture.endpoint.port=65536", "capture.endpoint.port"),
        ("capture.transport=smoke", "capture.transport: .*'auto', 'stream' or 'ray'"),
        ("capture.namespace=''", "capture.namespace"),
        ("collect.workers=0", "collect.workers"),
        ("collect.workers=1.5", "collect.workers"),
        ("collect.workers=null", "collect.workers"),
        ("collect.retries=-1", "collect.retries"),
        ("observability_enabled=perhaps", "observability_enabled"),
        ("ray.num_cpus=0", "ray.num_cpus"),
    ],
)
def test_a_value_that_cannot_work_is_refused_with_its_key(override: str, where: str) -> None:
    with pytest.raises(ConfigError, match=f"^invalid configuration: {where}"):
        load_config({}, [override])


@pytest.mark.parametrize("source", [5, None, b"run.yaml", ["capture.lease_s=1"]])
def test_what_is_no_configuration_at_all_is_refused(source: Any) -> None:
    with pytest.raises(ConfigError, match=f"not {re.escape(repr(source))} \\(a {type(source).__name__}\\)"):
        load_config(source)


def test_a_wrong_value_shows_this_error_alone() -> None:
    with pytest.raises(ConfigError) as refused:
        load_config({"model_call_capture_dir": "runs/1"})
    assert "ValidationError" not in "".join(traceback.format_exception(refused.value))


def test_all_that_is_wrong_is_told_at_once() -> None:
    with pytest.raises(ConfigError, match=r"lease_s.*; collect\.workers"):
        load_config({"capture": {"lease_s": -1}, "collect": {"workers": 0}})


@pytest.mark.parametrize("override", ["capture", "=1", "", "  "])
def test_an_override_has_a_key_and_a_value(override: str) -> None:
    with pytest.raises(ConfigError, match=r"not of the form key\.path=value"):
        load_config({}, [override])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("observability_enabled.x=1", "observability_enabled is a value, not a section"),
        ("capture=5", "capture is a section, not the value 5"),
        ("capture.endpoint=host:80", "capture.endpoint is a section, not the value 'host:80'"),
        ("capture.name=[", "is not YAML"),
        ("capture.name={a: 1, a: 2}", "the key 'a' stands here twice"),
        ("capture..name=x", "unknown key capture."),
    ],
)
def test_an_override_that_cannot_be_placed_is_refused(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config({"observability_enabled": True}, [override])


@pytest.mark.parametrize(
    "override",
    [
        "seal=URI",
        "seal.after_run=URI",
        "seal.to=[URI]",
        "seal.to={a: URI",
        "seal.to.x=URI",
        "seal={URI: 1}",
        "seal.to: URI",
        "proxy=URI",
    ],
)
def test_a_uri_in_the_wrong_place_is_refused_without_its_password(override: str, tmp_path: Path) -> None:
    given = override.replace("URI", "s3://an-id:very-secret@bucket/runs/7")
    path = write(tmp_path, "seal: [" + given)
    sources: list[tuple[Any, list[str]]] = [({}, [given]), (path, [])]
    for source, overrides in sources:
        with pytest.raises(ConfigError) as refused:
            load_config(source, overrides)
        assert "very-secret" not in "".join(traceback.format_exception(refused.value))


def test_a_place_for_a_sealed_run_that_is_not_to_be_sealed_is_refused() -> None:
    uri = "s3://an-id:very-secret@bucket/runs/7"
    with pytest.raises(ConfigError, match=r"seal\.to: .*after_run is false; write after_run: true") as refused:
        load_config({"seal": {"after_run": False, "to": uri}})
    assert "very-secret" not in str(refused.value)
    for section, wanted in (
        ({}, False),
        ({"after_run": False}, False),
        ({"after_run": True}, True),
        ({"to": uri}, True),
    ):
        config = load_config({"seal": section})
        assert (config.seal.wanted, load_config(config).seal.wanted) == (wanted, wanted)


def test_a_relative_directory_in_a_mapping_is_refused() -> None:
    with pytest.raises(ConfigError, match="model_call_capture_dir: must be an absolute path, not 'runs/1'"):
        load_config({"model_call_capture_dir": "runs/1"})


def test_paths_of_a_file_or_override_are_taken_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RUN_NAME", "r7")
    monkeypatch.setenv("HOME", "/home-of-user")
    path = write(
        tmp_path, "model_call_capture_dir: runs/${RUN_NAME}\ncollect: {input: ~/in.jsonl, output: ../out.jsonl}\n"
    )
    config = load_config(path)
    assert config.directory == tmp_path / "runs/r7"
    assert config.collect.input == "/home-of-user/in.jsonl"
    assert config.collect.output == str(tmp_path.parent / "out.jsonl")
    config = load_config({}, ["model_call_capture_dir=here/$RUN_NAME", "collect.input=rows.jsonl"])
    assert config.directory == tmp_path / "here/r7"
    assert config.collect.input == str(tmp_path / "rows.jsonl")


def test_a_variable_that_is_not_set_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH_RUN", raising=False)
    with pytest.raises(
        ConfigError, match=r"model_call_capture_dir is '/r/\$\{NO_SUCH_RUN\}'.*\$\{NO_SUCH_RUN\} is not set"
    ):
        load_config(write(tmp_path, "model_call_capture_dir: /r/${NO_SUCH_RUN}"))
    with pytest.raises(ConfigError, match=r"collect.output .*\$NO_SUCH_RUN is not set"):
        load_config({}, ["collect.output=$NO_SUCH_RUN/out"])


def test_without_a_directory_there_is_none_to_ask_for() -> None:
    with pytest.raises(ConfigError, match="model_call_capture_dir is not set"):
        _ = CaptureConfig().directory


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"capture: [", "is not YAML"),
        (b"capture: {a: 1}}", "is not YAML"),
        (b"- a\n- b\n", "holds a list; a configuration is a mapping"),
        (b"just text", "holds a str"),
        (b"\xff\xfe\x00", "is not UTF-8 text"),
        (b"capture: {lease_s: 1}\ncapture: {lease_s: 2}\n", "the key 'capture' stands here twice"),
        (b"capture: !!python/object/apply:os.system ['true']", "is not YAML"),
        (b"model_call_capture_dir: 2026-99-99", "is not YAML"),
        (b"x: " + b"[" * 5000, "is not YAML"),
    ],
)
def test_what_is_no_configuration_file_is_refused_with_its_name(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "run.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=message) as refused:
        load_config(path)
    assert str(path) in str(refused.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read the configuration .*absent\.yaml: No such file"):
        load_config(tmp_path / "absent.yaml")
    with pytest.raises(ConfigError, match="cannot read the configuration"):
        load_config(tmp_path)


def test_a_merge_key_is_no_repeated_key(tmp_path: Path) -> None:
    path = write(tmp_path, "ray: {runtime_env: {a: &a {x: 1}, b: {<<: *a, x: 2}}}")
    assert load_config(path).ray.runtime_env == {"a": {"x": 1}, "b": {"x": 2}}


def test_a_configuration_does_not_change() -> None:
    config = CaptureConfig()
    with pytest.raises(ValidationError, match="frozen"):
        config.capture.lease_s = 1.0  # type: ignore[misc]


def test_every_key_is_described() -> None:
    def undescribed(model: type[BaseModel]) -> list[str]:
        missing: list[str] = []
        for name, field in model.model_fields.items():
            kind = field.annotation
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                missing += undescribed(kind)
            elif not field.description:
                missing.append(name)
        return missing

    assert undescribed(CaptureConfig) == []
    assert len(all_keys()) == len(set(all_keys()))
    assert {"observability_enabled", "capture.endpoint.port", "collect.require_complete"} <= set(all_keys())


OURS = [path for path in sorted(CONFIGS.glob("*.yaml")) if not path.name.startswith("prometheus")]


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.name)
def test_the_configurations_that_come_with_the_project_are_valid(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USER", "user")
    load_config(path)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        (
            "capture.redact.paths=['$.request[']",
            r"capture\.redact\.paths: '\$\.request\[' is not a JSON path.*\$\.\.api_key",
        ),
        ("capture.redact.paths=[request.user]", r"'request\.user' is not a JSON path by RFC 9535"),
        ("capture.redact.paths=['$']", r"'\$' is the whole exchange"),
        ("capture.redact.patterns=['sk-(']", r"capture\.redact\.patterns: 'sk-\(' is not a regular expression"),
        ("capture.redact.patterns=['a*']", r"'a\*' matches the empty text"),
    ],
)
def test_a_rule_that_cannot_work_is_named_with_what_to_do(override: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_config({}, [override])


def test_the_clients_share_of_a_configuration_holds_what_every_client_goes_by() -> None:
    config = load_config(
        {}, ["capture.patience_s=7", "capture.lease_s=9", "capture.redact={paths: [$..a], patterns: ['b+']}"]
    )
    told = config.capture.for_clients()
    assert told == ClientSettings(patience_s=7.0, lease_s=9.0, redact=RedactionRules(("$..a",), ("b+",)))
    assert load_config({}).capture.for_clients() == ClientSettings()
