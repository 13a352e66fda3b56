"""Ready questions to the tables: a name, what it answers, and its SQL."""

from __future__ import annotations

from typing import NamedTuple


class Question(NamedTuple):
    """One question. Fields: its `name`, what it `asks`, its `sql`."""

    name: str
    asks: str
    sql: str


QUESTIONS = (
    Question(
        "slowest-calls",
        "the 20 calls that took longest",
        """
select rollout_id, call_index, model, latency_total_ms, latency_ttft_ms, tokens_in, tokens_out, error_category
from calls where latency_total_ms is not null
order by latency_total_ms desc, rollout_id, call_index limit 20
""",
    ),
    Question(
        "tokens-by-model",
        "calls and tokens of each model",
        """
select model, count(*) as calls, sum(tokens_in) as tokens_in, sum(cached_tokens) as cached_tokens,
    sum(tokens_out) as tokens_out, sum(tokens_reasoning) as tokens_reasoning, sum(tokens_total) as tokens_total
from calls group by model order by tokens_total desc nulls last, model
""",
    ),
    Question(
        "error-rates",
        "how often calls fail, by category",
        """
select error_category, count(*) as calls, round(100.0 * count(*) / (select count(*) from calls), 2) as percent
from calls where error_category is not null
group by error_category order by calls desc, error_category
""",
    ),
    Question(
        "cache-by-turn",
        "the share of prompt tokens that the provider's cache served, by place in the rollout",
        """
select call_index, count(*) as calls, round(100.0 * avg(cache_hit::int), 1) as hit_percent,
    round(100.0 * sum(cached_tokens) / nullif(sum(tokens_in), 0), 1) as cached_percent
from calls where cache_hit is not null
group by call_index order by call_index
""",
    ),
    Question(
        "gaps",
        "rollouts whose evidence is not whole",
        """
select rollout_id, calls, damaged_calls, outstanding, incomplete, gaps
from rollouts where len(gaps) > 0 order by rollout_id
""",
    ),
)


def question(name: str) -> Question | None:
    """The question of that name."""
    return next((each for each in QUESTIONS if each.name == name), None)
