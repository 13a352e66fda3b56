"""Agent observations: what an agent harness saw of its own run, as it stands in `ng_agent_observations`.

A bundle names its source and holds typed records (invocations, tool calls, compactions, sandboxes) and gaps. Fields
and rules are those of NeMo Gym 0.7's `AgentObservationBundle`; unknown fields are refused, so that a misspelt one
is noticed. Conversation items are the harness's own and are passed through as they are.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Count = Annotated[int, Field(ge=0)]
Measure = Annotated[float, Field(ge=0)]


class _Observed(BaseModel):
    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class ModelServerRef(BaseModel):
    """The model server that a reference points to."""

    type: Literal["responses_api_models"]
    name: str


class ModelCallRef(_Observed):
    """A reference to one model call: by its `model_call_id`, or by server and response id together."""

    model_call_id: str | None = None
    model_ref: ModelServerRef | None = None
    response_id: str | None = None

    @model_validator(mode="after")
    def _names_a_call(self) -> Self:
        if self.model_call_id or (self.model_ref is not None and self.response_id):
            return self
        raise ValueError("a model call is named by model_call_id, or by model_ref and response_id together")


class AgentInvocation(_Observed):
    """One conversation of the agent or of a subagent; durations in milliseconds."""

    kind: Literal["agent_invocation"] = "agent_invocation"
    invocation_id: str
    parent_invocation_id: str | None = None
    spawned_by_tool_call_id: str | None = None
    status: Literal["completed", "failed", "incomplete", "unknown"] = "unknown"
    duration_ms: Measure | None = None
    error_type: str | None = None
    model_calls: list[ModelCallRef] = Field(default_factory=list)
    conversation: list[Any] = Field(default_factory=list)


class ToolCallObservation(_Observed):
    """One tool call as its executor saw it; times in UTC Unix seconds, durations in milliseconds."""

    kind: Literal["tool_call"] = "tool_call"
    invocation_id: str
    tool_call_id: str
    sandbox_id: str | None = None
    tool_name: str | None = None
    started_at: float | None = None
    completed_at: float | None = None
    duration_ms: Measure | None = None
    timing_source: Literal["executor", "artifact", "harness"] | None = None
    status: Literal["completed", "failed", "timeout", "cancelled", "incomplete", "unknown"] = "unknown"
    error_type: str | None = None

    @model_validator(mode="after")
    def _ends_after_it_starts(self) -> Self:
        started, completed = self.started_at, self.completed_at
        if started is not None and completed is not None and completed < started:
            raise ValueError(f"the tool call completed at {completed}, before it started at {started}")
        return self


class ContextCompactionObservation(_Observed):
    """One compaction of an invocation's context, and the model calls around it and for it."""

    kind: Literal["context_compaction"] = "context_compaction"
    invocation_id: str
    observed_at: float | None = None
    trigger: str | None = None
    tokens_before: Count | None = None
    tokens_after: Count | None = None
    outcome: Literal["completed", "failed", "aborted", "unknown"] = "unknown"
    summary: str | None = None
    first_kept_item_id: str | None = None
    before_model_call: ModelCallRef | None = None
    model_calls: list[ModelCallRef] = Field(default_factory=list)
    after_model_call: ModelCallRef | None = None


class SandboxObservation(_Observed):
    """How a sandbox ended and what it used; times in seconds, memory in MiB, as measured, never as allocated."""

    kind: Literal["sandbox"] = "sandbox"
    role: Literal["agent", "verifier", "environment"]
    provider: str | None = None
    sandbox_id: str | None = None
    outcome: Literal["completed", "failed", "timeout", "oom", "sandbox_error", "cancelled", "unknown"] = "unknown"
    exit_code: int | None = None
    wall_time_s: Measure | None = None
    cpu_time_s: Measure | None = None
    peak_memory_mib: Measure | None = None
    resource_usage_source: str | None = None
    error_type: str | None = None


class ObservationGap(_Observed):
    """What a harness could not observe, or the join could not resolve."""

    code: str
    invocation_id: str | None = None
    detail: str | None = None


Observation = Annotated[
    AgentInvocation | ToolCallObservation | ContextCompactionObservation | SandboxObservation,
    Field(discriminator="kind"),
]


class AgentObservationBundle(_Observed):
    """What one agent harness observed of one rollout. The order of the records says nothing."""

    source: str
    records: list[Observation] = Field(default_factory=list)
    gaps: list[ObservationGap] = Field(default_factory=list)

    @model_validator(mode="after")
    def _invocations_form_a_forest(self) -> Self:
        parents: dict[str, str | None] = {}
        for record in self.records:
            if isinstance(record, AgentInvocation):
                if record.invocation_id in parents:
                    raise ValueError(f"invocation_id {record.invocation_id!r} stands for two invocations")
                parents[record.invocation_id] = record.parent_invocation_id
        _refuse_cycles(parents)
        return self

    def plain(self) -> dict[str, Any]:
        """The bundle as JSON values with every field present; conversation items are the very same objects."""
        dumped = self.model_dump(mode="json", exclude={"records": {"__all__": {"conversation"}}})
        for record, plain in zip(self.records, dumped["records"], strict=True):
            if isinstance(record, AgentInvocation):
                plain["conversation"] = record.conversation
        return dumped


def _refuse_cycles(parents: dict[str, str | None]) -> None:
    """A parent that was not observed is a root; a chain that returns to itself is an error."""
    sound: set[str] = set()
    for start in parents:
        chain: dict[str, None] = {}
        current: str | None = start
        while current is not None and current in parents and current not in sound:
            if current in chain:
                raise ValueError(f"invocation {current!r} is its own ancestor")
            chain[current] = None
            current = parents[current]
        sound.update(chain)
