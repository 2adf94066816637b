"""Tokens and inputs of requests, sessions, and agents."""

from typing import Annotated

from llm_locust.metrics.summary_types.base import Amounts, Effective, Intervals, SummaryPart, key


class LengthErrors(SummaryPart, frozen=True):
    """How near prompts came to the lengths that were asked for."""

    n: Annotated[int, key("number of prompts", "ok, both known")]
    mean_relative: Annotated[float | None, key("(got − asked) / asked: mean", "ok, both known")]
    p50: Annotated[float | None, key("(got − asked) / asked: median of its absolute value", "ok, both known")]
    p99: Annotated[float | None, key("(got − asked) / asked: p99 of its absolute value", "ok, both known")]
    share_within_1_percent: Annotated[
        float | None, key("(got − asked) / asked: share within 1 %", "ok, both known")
    ]


_LENGTH = "ok, scheduled in the window, count known"


class TokenCounts(SummaryPart, frozen=True):
    """Tokens of a request."""

    n: Annotated[int, key("number of requests", _LENGTH)]
    mean: Annotated[float | None, key("tokens a request", _LENGTH)]
    p50: Annotated[float | None, key("tokens a request", _LENGTH)]
    p99: Annotated[float | None, key("tokens a request", _LENGTH)]
    max: Annotated[float | None, key("tokens a request", _LENGTH)]


class InputTokenCounts(TokenCounts, frozen=True):
    """Tokens of a prompt."""

    error: LengthErrors


class Pace(SummaryPart, frozen=True):
    """The speed that users see; its slow end is the low one."""

    n: Annotated[int, key("number of answers")]
    mean: Annotated[float | None, key("mean and percentiles")]
    p1: Annotated[float | None, key("mean and percentiles")]
    p10: Annotated[float | None, key("mean and percentiles")]
    p50: Annotated[float | None, key("mean and percentiles")]
    ci95: Intervals
    n_effective: Effective


class CountedBy(SummaryPart, frozen=True):
    """Who counted tokens."""

    usage: Annotated[
        float | None,
        key(
            "share of the tokens of `throughput.output_tokens_per_s` that this source counted",
            "tokens credited in the window, whatever became of their request",
        ),
    ]
    tokenizer: Annotated[
        float | None,
        key(
            "share of the tokens of `throughput.output_tokens_per_s` that this source counted",
            "tokens credited in the window, whatever became of their request",
        ),
    ]
    events: Annotated[
        float | None,
        key(
            "share of the tokens of `throughput.output_tokens_per_s` that this source counted",
            "tokens credited in the window, whatever became of their request",
        ),
    ]
    estimate: Annotated[
        float | None,
        key(
            "the same: events × the run's tokens per event, where a request was cut or failed before the "
            "server counted",
            "tokens credited in the window, whatever became of their request",
        ),
    ]


_FAULTS = key("answers by [what does not fit](definitions.md#counts-that-cannot-be-true)", "ok")


class HiddenTokens(SummaryPart, frozen=True):
    """Reasoning that was counted and did not come."""

    requests: Annotated[
        int, key("[hidden reasoning](definitions.md#tokens-without-an-event): answers that have some", "ok")
    ]
    tokens: Annotated[int, key("its tokens", "ok")]
    share: Annotated[float | None, key("its share in all output tokens", "ok")]


class CountFaults(SummaryPart, frozen=True):
    """Answers whose number of output tokens by the server does not fit what came."""

    fewer_than_events: Annotated[int, _FAULTS]
    more_than_bytes: Annotated[int, _FAULTS]
    more_than_text: Annotated[int, _FAULTS]
    beyond_any_length: Annotated[int, _FAULTS]
    reasoning_left_out: Annotated[int, _FAULTS]
    other_total: Annotated[int, _FAULTS]
    not_used: Annotated[
        float | None, key("share of the answers whose number is not used, for one of these", "ok")
    ]


#: Share of answers with unread text above which that is why few events are known.
COMMON = 0.1


class UnreadText(SummaryPart, frozen=True):
    """A field of events without other text, whose text is not read."""

    field: Annotated[str | None, key("the most frequent; null without any", "ok")]
    share: Annotated[float | None, key("share of the answers that have such a field", "ok")]

    @property
    def is_common(self) -> bool:
        """Whether so many answers have one that it changes the figures of all."""
        return (self.share or 0.0) > COMMON


class Tokens(SummaryPart, frozen=True):
    """How long prompts and answers were, and how the tokens came."""

    input: InputTokenCounts
    output: TokenCounts
    tokens_per_event: Annotated[
        float | None,
        key(
            "Σ output tokens that events brought / Σ token events; 1 of a first event whose number is known",
            "ok and streamed, count known",
        ),
    ]
    opening: Annotated[
        float | None,
        key(
            "tokens of the first event: mean",
            "ok and streamed, [counted in each event](definitions.md#counts-in-each-event)",
        ),
    ]
    source: CountedBy
    hidden: HiddenTokens
    faults: CountFaults
    unread: UnreadText
    user_tps: Annotated[Pace, key("1 / tpot, tokens/s", "ok, tpot defined")]
    chars_per_s: Annotated[Pace, key("pace in characters/s", "ok, defined")]
    chars_per_token: Annotated[float | None, key("Σ characters / Σ output tokens", "ok, both known")]
    chars_per_event: Annotated[
        float | None, key("Σ characters / Σ token events", "ok and streamed, counted by events")
    ]
    delivery: Annotated[
        str | None, key("`tokens`, `merged`, `buffered` or `unread`: how the stream came", "ok and streamed")
    ]

    @property
    def is_buffered(self) -> bool:
        """Whether something between server and client held the stream back."""
        return self.delivery == "buffered"


class SessionTimes(SummaryPart, frozen=True):
    """Times of sessions or their turns."""

    n: Annotated[int, key("number of values")]
    mean: Annotated[float | None, key("mean and percentiles")]
    p50: Annotated[float | None, key("mean and percentiles")]
    p95: Annotated[float | None, key("mean and percentiles")]
    p99: Annotated[float | None, key("mean and percentiles")]
    ci95: Intervals
    n_effective: Effective


_TURNS = "turns scheduled in the window"


class TurnPart(SummaryPart, frozen=True):
    """The requests of one turn of sessions."""

    turn: Annotated[int, key("number of the turn, from 0", _TURNS)]
    from_here_on: Annotated[bool, key("all later turns are in it, too", _TURNS)]
    requests: Annotated[int, key("number of requests", _TURNS)]
    ok: Annotated[int, key("number that ended ok", _TURNS)]
    failed: Annotated[int, key("number that failed", _TURNS)]
    abandoned: Annotated[int, key("number whose user left", _TURNS)]
    left_out: Annotated[
        int, key("number that were cut, abandoned or timed out, and are in no latency here", _TURNS)
    ]
    ttft_ms: Annotated[SessionTimes, key("latency, ms", "ok turns")]
    tpot_ms: Annotated[SessionTimes, key("latency, ms", "ok turns")]
    e2el_ms: Annotated[SessionTimes, key("latency, ms", "ok turns")]
    input_tokens: Annotated[Amounts, key("prompt tokens", "ok turns, known")]
    cached_share: Annotated[float | None, key("cached / all prompt tokens", "ok turns, known")]


_BEGAN = "first turn scheduled in the window"


_FOLLOWING = "turns after a session's first, scheduled in the window and sent"
_PLACED = "turns that gave the header back, with a known replica, as the turn before"


class SessionHeaderPart(SummaryPart, frozen=True):
    """The header that a session's next request gives back."""

    name: Annotated[str, key("`--session-header`", "the run")]
    echoed: Annotated[int, key("number of turns that gave it back", _FOLLOWING)]
    missing: Annotated[int, key("number of turns that had none: no answer before had one", _FOLLOWING)]
    refused: Annotated[int, key("number of turns whose value could not be sent", _FOLLOWING)]
    placed: Annotated[int, key("number of turns", _PLACED)]
    same_replica: Annotated[float | None, key("share at the replica of the turn before", _PLACED)]


class Sessions(SummaryPart, frozen=True):
    """Sessions that began in the window."""

    n: Annotated[int, key("number of sessions", _BEGAN)]
    completed: Annotated[int, key("number of sessions that came through", _BEGAN)]
    abandoned: Annotated[int, key("number of sessions whose user left", _BEGAN)]
    failed: Annotated[int, key("number of sessions with a turn that failed", _BEGAN)]
    cut: Annotated[int, key("number of sessions that the run's end cut", _BEGAN)]
    turns: Annotated[Amounts, key("turns a session", "sessions that were not cut")]
    output_tokens: Annotated[Amounts, key("output tokens a session", "sessions that were not cut")]
    duration_s: Annotated[SessionTimes, key("duration, s", "completed sessions")]
    by_turn: list[TurnPart]
    header: SessionHeaderPart | None = None


_TURNS = "turns of walks, scheduled in the window"
_JOBS = "walks through trajectories of the pool whose last answer ended in the window, all turns ok"
_AFTER_PAUSE = "turns of walks but their first ones, scheduled in the window, that were sent"
_WORK = "the window; turns of all walks, sub-agents included, and the time of their agents"
_CACHE = "ok turns whose prompt and cached tokens the server counted"


class AgentCache(SummaryPart, frozen=True):
    """Prefix-cache hits of agents."""

    turns: Annotated[int, key("number of turns", _CACHE)]
    achieved: Annotated[float | None, key("cached / all prompt tokens", _CACHE)]
    possible: Annotated[
        float | None,
        key(
            "the same share at best, in a cache that forgets nothing; by the characters of each prompt",
            _CACHE,
        ),
    ]


class AgentPauses(SummaryPart, frozen=True):
    """How exactly recorded pauses were kept."""

    n: Annotated[int, key("number of turns", _AFTER_PAUSE)]
    late_ms_p50: Annotated[float | None, key("sent − scheduled, ms: median", _AFTER_PAUSE)]
    late_ms_p99: Annotated[float | None, key("sent − scheduled, ms: p99", _AFTER_PAUSE)]
    late_ms_max: Annotated[float | None, key("sent − scheduled, ms: the most", _AFTER_PAUSE)]
    late: Annotated[int, key("turns that were sent more than 5 ms late", _AFTER_PAUSE)]


class Agents(SummaryPart, frozen=True):
    """Agents that walk through trajectories."""

    agents: Annotated[int, key("number of agents with a turn", _TURNS)]
    turns: Annotated[int, key("number of turns", _TURNS)]
    ok: Annotated[int, key("number of ok turns", _TURNS)]
    output_tokens_per_s_p25: Annotated[float | None, key("1 / TPOT: a quarter is slower", _TURNS)]
    output_tokens_per_s_p50: Annotated[float | None, key("1 / TPOT: median", _TURNS)]
    pauses: AgentPauses
    e2e_tokens_per_s_p10: Annotated[float | None, key("output tokens / E2EL: a tenth is slower", _TURNS)]
    e2e_tokens_per_s_p25: Annotated[float | None, key("output tokens / E2EL: a quarter is slower", _TURNS)]
    e2e_tokens_per_s_p50: Annotated[float | None, key("output tokens / E2EL: median", _TURNS)]
    e2e_tokens_per_s_mean: Annotated[float | None, key("all output tokens / sum of E2EL", _TURNS)]
    jobs: Annotated[int, key("number of jobs", _JOBS)]
    jobs_failed: Annotated[
        int,
        key(
            "number of those that ended with a failed turn, in no other figure of jobs",
            "walks through trajectories of the pool whose failed turn ended in the window",
        ),
    ]
    job_s_mean: Annotated[float | None, key("mean duration of a job, s", _JOBS)]
    between_turns_s_mean: Annotated[
        float | None, key("of it between turns, in tools and sub-agents, s", _JOBS)
    ]
    tools_s_mean: Annotated[float | None, key("of that in tools, the recorded pauses, s", _JOBS)]
    jobs_worked: Annotated[
        float | None, key("ok turns of walks that did not fail / mean turns of a job", _WORK)
    ]
    turns_seen: Annotated[float | None, key("share of the pool's turns that are among them", _WORK)]
    agent_s: Annotated[float, key("time of all agents, s", _WORK)]
    between_turns_share: Annotated[float | None, key("share of it without a turn of the agent itself", _WORK)]
    tools_s: Annotated[
        float,
        key(
            "recorded pauses of tools of agents, s", "ok turns of agents themselves that ended in the window"
        ),
    ]
    tools_share: Annotated[
        float | None,
        key("share of `agent_s` in recorded pauses; the rest of `between_turns_share` is sub-agents", _WORK),
    ]
    jobs_per_h_per_user: Annotated[float | None, key("3,600 × `jobs_worked` / `agent_s`", _WORK)]
    jobs_per_h: Annotated[float | None, key("3,600 × `jobs_worked` / length of the window", _WORK)]
    jobs_per_h_per_gpu: Annotated[float | None, key("the same / `--gpus`", _WORK)]
    cache: AgentCache


_ALL_INPUTS = "all requests with inputs, whenever scheduled"
_OK_INPUTS = "ok, scheduled in the window, with inputs"


class InputCounts(SummaryPart, frozen=True):
    """Inputs of a request: its batch size."""

    n: Annotated[int, key("number of requests", _OK_INPUTS)]
    mean: Annotated[float | None, key("inputs a request", _OK_INPUTS)]
    p50: Annotated[float | None, key("inputs a request", _OK_INPUTS)]
    p99: Annotated[float | None, key("inputs a request", _OK_INPUTS)]
    max: Annotated[float | None, key("inputs a request", _OK_INPUTS)]


class InputFigures(SummaryPart, frozen=True):
    """Texts that were embedded, or documents that were ranked."""

    inputs_per_s: Annotated[
        float | None, key("inputs of requests that were answered in the window / seconds", _ALL_INPUTS)
    ]
    input_tokens_per_s: Annotated[
        float | None,
        key("their tokens, by the server / seconds; a rerank: query and document", _ALL_INPUTS),
    ]
    per_request: InputCounts
    tokens_per_input: Annotated[float | None, key("Σ input tokens / Σ inputs", f"{_OK_INPUTS}, tokens known")]


class Inputs(InputFigures, frozen=True):
    """The same of all requests, and of those of each name."""

    by_name: Annotated[
        dict[str, InputFigures], key("of the requests of each name, where several names have inputs")
    ]
