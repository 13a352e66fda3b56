"""The configuration of a run: a frozen, validated model, its YAML form, and `key.path=value` overrides.

NeMo Gym's two keys (`observability_enabled`, `model_call_capture_dir`) stay valid at the top. A key that is not known
is refused, and the nearest one that is known is named.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from gym_capture.errors import ConfigError
from gym_capture.model.client_settings import ClientSettings
from gym_capture.model.redaction_rules import RedactionRules, compile_path, compile_pattern
from gym_capture.model.shards import MOST_SHARDS, run_actor_name

_DIRECTORY = "model_call_capture_dir"
_COLLECT_PATHS = ("input", "output")
_PASSWORD = re.compile(r"(://[^:@/?#\s]*:)[^\n]*@")
_VARIABLE = re.compile(r"\$(\w+|\{[^}]*\})")


class _UniqueKeys(yaml.SafeLoader):
    """YAML where a key that stands twice in one mapping is an error, not a silent choice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"the key {key.value!r} stands here twice", key.start_mark
                    )
                seen.add(key.value)
        return super().construct_mapping(node, deep)


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=False, allow_inf_nan=False)


class EndpointConfig(_Section):
    """Where the owner's stream listens."""

    host: str = Field(
        "node", description="address to listen on and to hand out; `node`: the node's own address as Ray knows it"
    )
    port: int = Field(0, ge=0, le=65535, description="0: any free port; else shard N listens on port + N")


class PlacementConfig(_Section):
    """On which Ray node the owner runs."""

    node: str = Field(
        "driver",
        description="`driver`: the node that starts the run (soft; further shards are spread over the nodes); `any`; "
        "or a Ray node id (hard)",
    )
    resources: dict[str, float] = Field(
        default_factory=dict, description="custom Ray resources that the owner's node must have"
    )


class RedactConfig(_Section):
    """What is taken out of exchanges before they leave the process."""

    paths: list[str] = Field(
        default_factory=list, description="JSON paths (RFC 9535) from the exchange's root; what they match is replaced"
    )
    patterns: list[str] = Field(
        default_factory=list, description="regular expressions; what they match in any text is replaced"
    )

    @field_validator("paths")
    @classmethod
    def _paths(cls, value: list[str]) -> list[str]:
        for path in value:
            compile_path(path)
        return value

    @field_validator("patterns")
    @classmethod
    def _patterns(cls, value: list[str]) -> list[str]:
        for pattern in value:
            compile_pattern(pattern)
        return value


class CaptureSettings(_Section):
    """The owner and its clients."""

    name: str | None = Field(None, description="the actor's name; null: made from the directory's real path")
    namespace: str = Field("gym_capture", min_length=1, description="the actor's Ray namespace")
    shards: int = Field(
        1, ge=1, le=MOST_SHARDS, description="owners that share the run's rollouts; fixed for the life of a run"
    )
    transport: Literal["auto", "stream", "ray"] = Field(
        "auto", description="how clients reach the owner; auto: stream, else Ray calls"
    )
    lease_s: float = Field(6.0, gt=0, description="a client that is silent for so long has lost its claims, seconds")
    drain_timeout_s: float = Field(10.0, ge=0, description="how long merge awaits quiescence, seconds")
    patience_s: float = Field(
        120.0, ge=0, description="how long claims wait for an owner that is away, in all, seconds"
    )
    max_exchange_bytes: int = Field(
        64 << 20,
        gt=0,
        le=512 << 20,  # a frame of the log holds 1 GiB, and one exchange has to fit whatever else is in it
        description="larger exchanges are refused and mark their rollout incomplete",
    )
    max_batch_bytes: int = Field(
        4 << 20, gt=0, description="bytes that a client sends at once; one exchange always fits"
    )
    client_buffer_bytes: int = Field(256 << 20, gt=0, description="exchanges that a client process holds in memory")
    history: bool = Field(True, description="messages that a rollout's requests repeat are stored once")
    owner_buffer_bytes: int = Field(1 << 30, gt=0, description="bytes that the owner holds before it stops reading")
    segment_bytes: int = Field(64 << 20, ge=1 << 16, le=1 << 40, description="a log segment is finished at this size")
    max_concurrency: int = Field(20_000, gt=0, description="Ray calls that may wait in the owner at once")
    endpoint: EndpointConfig = EndpointConfig()
    placement: PlacementConfig = PlacementConfig()
    redact: RedactConfig = RedactConfig()

    @field_validator("name")
    @classmethod
    def _name(cls, value: str | None) -> str | None:
        if value is not None and run_actor_name(value) != value:
            raise ValueError("must not end in -shard-N: so the owners of a run's other shards are called")
        return value

    def for_clients(self) -> ClientSettings:
        """The clients' share of it."""
        return ClientSettings(
            patience_s=self.patience_s,
            drain_timeout_s=self.drain_timeout_s,
            lease_s=self.lease_s,
            max_exchange_bytes=self.max_exchange_bytes,
            max_batch_bytes=self.max_batch_bytes,
            client_buffer_bytes=self.client_buffer_bytes,
            history=self.history,
            redact=RedactionRules(tuple(self.redact.paths), tuple(self.redact.patterns)),
        )


class ProxyConfig(_Section):
    """A capturing proxy in front of a model server; `gym-capture run` starts it where an upstream is named."""

    upstream: str | None = Field(
        None, description="the model server's base URL, without /v1; null: no proxy", examples=["http://10.0.0.7:8000"]
    )
    replicas: int = Field(1, ge=1, le=64, description="proxy processes on each node")
    host: str = Field("node", description="address to listen on; `node`: the node's own address as Ray knows it")
    port: int = Field(0, ge=0, le=65535, description="0: any free port")
    model_ref: dict[str, str] | None = Field(
        None, description="what captured calls name as their model server, {type, name}"
    )
    connect_timeout_s: float = Field(10.0, gt=0, description="how long connecting to the upstream may take, seconds")
    idle_timeout_s: float = Field(
        600.0, gt=0, description="how long the upstream may say nothing, before or within its answer, seconds"
    )
    drain_s: float = Field(
        30.0, ge=0, description="how long running requests may go on once the proxy is told to stop, seconds"
    )
    non_generating: list[str] = Field(
        default_factory=list, description="further paths (`*` matches anything) that call no model, /v1/embeddings say"
    )
    keep_raw_streams: bool = Field(False, description="keep each stream's bytes beside its reassembled response")


class RayConfig(_Section):
    """Which Ray to use."""

    address: str = Field(
        "local", min_length=1, description="`local`: an embedded one; `auto` or host:port: a cluster that is there"
    )
    num_cpus: int | None = Field(None, ge=1, description="CPUs of the embedded Ray; null: as many as the machine has")
    runtime_env: dict[str, Any] = Field(default_factory=dict, description="passed to ray.init as it is")


class CollectConfig(_Section):
    """What `gym-capture run` collects."""

    input: str | None = Field(None, description="JSONL, one row a rollout")
    output: str | None = Field(None, description="JSONL of finished rollout records; failures go beside it")
    rollout: str | None = Field(None, description="`package.module:function`, an async def rollout(row, session)")
    workers: int = Field(4, ge=1, description="Ray worker processes")
    concurrency: int = Field(64, ge=1, description="rollouts under way at once, over all workers")
    repeats: int = Field(1, ge=1, description="rollouts of each input row")
    retries: int = Field(1, ge=0, description="attempts after a failed one, each under the id of the next attempt")
    limit: int | None = Field(None, ge=1, description="only the first rows of the input")
    rollout_timeout_s: float | None = Field(
        None, gt=0, description="an attempt that takes longer has failed, seconds; null: as long as it likes"
    )
    stop_grace_s: float = Field(
        30.0, ge=0, description="how long running rollouts may go on after Ctrl-C (a second one ends them), seconds"
    )
    include_payloads: bool = Field(False, description="merged calls carry requests and responses")
    require_complete: bool = Field(False, description="exit non-zero when evidence is missing")
    worker_resources: dict[str, float] = Field(
        default_factory=dict, description="Ray resources of each worker, beside `worker_num_cpus`"
    )
    worker_num_cpus: float = Field(1.0, ge=0, description="CPUs of each worker")


class SealConfig(_Section):
    """What becomes of the capture directory once `gym-capture run` has ended well. What finishes is sealed ahead."""

    after_run: bool | None = Field(
        None,
        description="seal it: a Parquet dataset instead of the log; nothing is added to it; null: if `to` is given",
    )
    to: str | None = Field(
        None,
        min_length=1,
        description="seal it and carry it to a folder elsewhere, as pyarrow's file systems name it",
        examples=["s3://bucket/runs/7"],
    )

    @field_validator("to")
    @classmethod
    def _of_a_sealed_run(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None and info.data.get("after_run") is False:
            raise ValueError(
                "only a sealed run is carried there, and seal.after_run is false; write after_run: true (or leave it "
                "out) to seal the run and carry it, or to: null to do neither"
            )
        return value

    @property
    def wanted(self) -> bool:
        """Whether anything is to be sealed."""
        return bool(self.after_run) or self.to is not None


class CaptureConfig(_Section):
    """A whole run's configuration (the YAML file)."""

    observability_enabled: bool = Field(True, description="false: nothing is captured, every call is a no-op")
    model_call_capture_dir: Path | None = Field(
        None, description="the run's capture directory, absolute, seen by every node that may run the owner"
    )
    capture: CaptureSettings = CaptureSettings()
    proxy: ProxyConfig = ProxyConfig()
    ray: RayConfig = RayConfig()
    collect: CollectConfig = CollectConfig()
    seal: SealConfig = SealConfig()

    @field_validator("model_call_capture_dir")
    @classmethod
    def _absolute(cls, value: Path | None) -> Path | None:
        if value is not None and not value.is_absolute():
            raise ValueError(
                f"must be an absolute path, not {str(value)!r}: workers on other nodes have other working directories"
            )
        return value

    @property
    def directory(self) -> Path:
        """The capture directory.

        Raises:
            ConfigError: none is configured.
        """
        if self.model_call_capture_dir is None:
            raise ConfigError(
                "model_call_capture_dir is not set: give the run's capture directory as an absolute path that every "
                "node sees, in the YAML or as model_call_capture_dir=/path"
            )
        return self.model_call_capture_dir


def load_config(source: CaptureConfig | Mapping[str, Any] | str | Path, overrides: Sequence[str] = ()) -> CaptureConfig:
    """A configuration from a YAML file, a mapping or one that is validated already.

    Args:
        source: what to read. In a file, relative `model_call_capture_dir`, `collect.input` and `collect.output` are
            taken from the working directory, `${VAR}` and `~` in them are expanded.
        overrides: `key.path=value` strings (the value is YAML), later ones win.

    Raises:
        ConfigError: no such file, not YAML, an unknown key (the nearest known one is named), or a value out of range.
    """
    if isinstance(source, BaseModel):
        data: dict[str, Any] = source.model_dump(mode="python")
    elif isinstance(source, Mapping):
        data = _copied(source)
    elif not isinstance(source, str | os.PathLike):
        raise ConfigError(
            f"a configuration is a CaptureConfig, a mapping or the path of a YAML file, not {source!r} (a "
            f"{type(source).__name__}). Nothing was started; give one of those."
        )
    else:
        data = _read_yaml(Path(source))
        if isinstance(data.get(_DIRECTORY), str):
            data[_DIRECTORY] = _path(_DIRECTORY, data[_DIRECTORY])
        collect = data.get("collect")
        if isinstance(collect, dict):
            for key in _COLLECT_PATHS:
                if isinstance(collect.get(key), str):
                    collect[key] = _path(f"collect.{key}", collect[key])
    for override in overrides:
        _apply_override(data, override)
    _check_keys(data, CaptureConfig, "")
    try:
        return CaptureConfig.model_validate(_without_empty_sections(data, CaptureConfig))
    except ValidationError as error:
        raise ConfigError(_explain(error)) from None  # it says all that pydantic does, in our words


def _copied(source: Mapping[str, Any]) -> dict[str, Any]:
    copy: dict[str, Any] = {}
    for key, value in source.items():
        if isinstance(value, BaseModel):
            copy[key] = value.model_dump(mode="python")
        else:
            copy[key] = _copied(value) if isinstance(value, Mapping) else value
    return copy


def _without_empty_sections(data: dict[str, Any], model: type[BaseModel]) -> dict[str, Any]:
    """A section with nothing under its key (all commented out, say) is one with nothing changed."""
    kept: dict[str, Any] = {}
    for key, value in data.items():
        section = _section(model, key)
        if section is None:
            kept[key] = value
        elif value is not None:
            kept[key] = _without_empty_sections(value, section)
    return kept


def _section(model: type[BaseModel], key: str) -> type[BaseModel] | None:
    field = model.model_fields.get(key)
    kind = field.annotation if field is not None else None
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _path(key: str, text: str) -> str:
    expanded = os.path.expanduser(os.path.expandvars(text))
    left = _VARIABLE.search(expanded)
    if left is not None:
        raise ConfigError(
            f"{key} is {text!r}, but the environment variable {left[0]} is not set; set it or write the path out"
        )
    return os.path.abspath(expanded)


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not YAML: it is not UTF-8 text ({error.reason})") from error
    try:
        data = yaml.load(text, Loader=_UniqueKeys)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not YAML: {_yaml_problem(error)}") from None
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigError(f"{path} holds a {type(data).__name__}; a configuration is a mapping of keys")
    return data


def _apply_override(data: dict[str, Any], override: str) -> None:
    key, sign, text = override.partition("=")
    if not sign or not key:
        raise ConfigError(f"override {_given(override)} is not of the form key.path=value")
    try:
        value = yaml.load(text, Loader=_UniqueKeys) if text else None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"the value of {_given(override)} is not YAML: {_yaml_problem(error)}") from None
    *parents, last = key.split(".")
    if isinstance(value, str) and key in (_DIRECTORY, *(f"collect.{name}" for name in _COLLECT_PATHS)):
        value = _path(key, value)
    section = data
    for name in parents:
        below = section.get(name)
        if below is None:
            below = section[name] = {}
        if not isinstance(below, dict):
            raise ConfigError(f"override {_given(override)}: {name} is a value, not a section")
        section = below
    section[last] = value


def _check_keys(data: Mapping[str, Any], model: type[BaseModel], prefix: str) -> None:
    known = model.model_fields
    for key, value in data.items():
        if key not in known:
            raise ConfigError(f"unknown key {prefix}{_without_passwords(str(key))}; {_nearest(str(key), prefix)}")
        section = _section(model, key)
        if section is not None:
            if isinstance(value, Mapping):
                _check_keys(value, section, f"{prefix}{key}.")
            elif value is not None:
                raise ConfigError(f"{prefix}{key} is a section, not the value {_given(value)}")


def all_keys(model: type[BaseModel] = CaptureConfig, prefix: str = "") -> list[str]:
    """Every key of the configuration as a dotted path."""
    keys: list[str] = []
    for name in model.model_fields:
        section = _section(model, name)
        if section is not None:
            keys += all_keys(section, f"{prefix}{name}.")
        else:
            keys.append(f"{prefix}{name}")
    return keys


def _nearest(key: str, prefix: str) -> str:
    known = all_keys()
    full = f"{prefix}{key}"
    siblings = [*CaptureConfig.model_fields] if not prefix else [path for path in known if path.startswith(prefix)]
    by_leaf = {path.rsplit(".", 1)[-1]: path for path in known}
    match = difflib.get_close_matches(full, [*siblings, *known], n=1) or [
        by_leaf[leaf] for leaf in difflib.get_close_matches(key, by_leaf, n=1)
    ]
    if match:
        return f"did you mean {match[0]}?"
    return f"known keys are {', '.join(siblings)}"


def _yaml_problem(error: Exception) -> str:
    """What is wrong, and where; without the lines there, which may have half a password in them."""
    problem, mark = getattr(error, "problem", None), getattr(error, "problem_mark", None)
    if problem is None or mark is None:
        return _without_passwords(str(error))
    return f"{_without_passwords(problem)}, line {mark.line + 1}, column {mark.column + 1}"


def _given(value: object) -> str:
    return _without_passwords(repr(value))


def _without_passwords(text: str) -> str:
    """Text for messages: a password in a URI (`seal.to`, `proxy.upstream`) is `***`, wherever the URI ended up."""
    return _PASSWORD.sub(r"\1***@", text)


def _explain(error: ValidationError) -> str:
    lines = []
    for item in error.errors():
        where = ".".join(str(part) for part in item["loc"])
        message = item["msg"].removeprefix("Value error, ")
        lines.append(
            f"{where}: {message}" + ("" if "must be an absolute" in message else f" (given {_given(item['input'])})")
        )
    return "invalid configuration: " + "; ".join(lines)
