"""What the run cost, what energy it took, what it reached of its GPUs, and what limited it."""

from typing import Annotated, Literal

from llm_locust.metrics.summary_types.base import SummaryPart, key

_WINDOW = "the window"
_COST = key("see [cost](definitions.md#cost)", _WINDOW)


class GivenPrices(SummaryPart, frozen=True):
    """The prices that were given."""

    gpu_hour_cost: Annotated[float | None, key("the prices given")]
    gpus: Annotated[float | None, key("the prices given")]
    input_token_price: Annotated[float | None, key("the prices given")]
    output_token_price: Annotated[float | None, key("the prices given")]


class CostFigures(SummaryPart, frozen=True):
    """The whole cost over what came out."""

    total: Annotated[float | None, _COST]
    per_request: Annotated[float | None, _COST]
    per_good_request: Annotated[float | None, _COST]
    per_million_input_tokens: Annotated[float | None, _COST]
    per_million_output_tokens: Annotated[float | None, _COST]
    per_million_good_output_tokens: Annotated[float | None, _COST]
    per_session: Annotated[float | None, _COST]


class RatesPerGpu(SummaryPart, frozen=True):
    """What one GPU gave."""

    output_tokens_per_s: Annotated[float | None, key("rate / GPUs", _WINDOW)]
    goodput_requests_per_s: Annotated[float | None, key("rate / GPUs", _WINDOW)]
    goodput_output_tokens_per_s: Annotated[float | None, key("rate / GPUs", _WINDOW)]


class Cost(SummaryPart, frozen=True):
    """What the answers cost, by GPU hours and by token prices."""

    prices: GivenPrices
    hours: Annotated[float, key("window in hours")]
    gpu: CostFigures
    api: CostFigures
    per_gpu: RatesPerGpu
    missing: Annotated[dict[str, str], key("why a figure above is null")]


class EnergyRates(SummaryPart, frozen=True):
    """Rates by power or by GPU."""

    output_tokens_per_s: Annotated[float | None, key("rate / power, rate / GPUs", _WINDOW)]
    total_tokens_per_s: Annotated[float | None, key("rate / power, rate / GPUs", _WINDOW)]
    requests_per_s: Annotated[float | None, key("rate / power, rate / GPUs", _WINDOW)]
    goodput_requests_per_s: Annotated[float | None, key("rate / power, rate / GPUs", _WINDOW)]
    goodput_output_tokens_per_s: Annotated[float | None, key("rate / power, rate / GPUs", _WINDOW)]


class Energy(SummaryPart, frozen=True):
    """What the answers took of electrical energy."""

    gpus: Annotated[int, key("GPUs watched", _WINDOW)]
    by_counter: Annotated[int, key("of these by an energy counter", _WINDOW)]
    power_w: Annotated[float, key("mean power, W", _WINDOW)]
    joules: Annotated[float, key("energy, J", _WINDOW)]
    joules_per_output_token: Annotated[float | None, key("power / rate of the window", _WINDOW)]
    joules_per_token: Annotated[float | None, key("power / rate of the window", _WINDOW)]
    joules_per_request: Annotated[float | None, key("power / rate of the window", _WINDOW)]
    joules_per_good_request: Annotated[float | None, key("power / rate of the window", _WINDOW)]
    per_watt: EnergyRates
    per_gpu: EnergyRates


_DEPLOYMENT = key("model and GPUs: [roofline.md](roofline.md)")
_USE = key("use of arithmetic and bandwidth", _WINDOW)
_STEPS = key("engines told apart, mean batch and context, bounds of TPOT and TTFT and what binds", _WINDOW)
_FIRST = "first token in the window"


class Roofline(SummaryPart, frozen=True):
    """What the run reached of its GPUs' bandwidth and arithmetic."""

    model: Annotated[str, _DEPLOYMENT]
    weights: Annotated[str, _DEPLOYMENT]
    gpu: Annotated[str, _DEPLOYMENT]
    gpus: Annotated[int | float, _DEPLOYMENT]
    models_asked: Annotated[int, key("different models that requests named, all counted as `model`")]
    peak_flops: Annotated[float, _DEPLOYMENT]
    bandwidth_bytes_per_s: Annotated[float, _DEPLOYMENT]
    mfu: Annotated[float | None, _USE]
    flops_per_s: Annotated[float | None, _USE]
    prompt_flops_share: Annotated[float | None, _USE]
    mbu: Annotated[float | None, _USE]
    bytes_per_s: Annotated[float | None, _USE]
    kv_share: Annotated[float | None, _USE]
    steps_per_s: Annotated[float | None, _USE]
    engines: Annotated[int, _STEPS]
    batch_mean: Annotated[float | None, _STEPS]
    context_mean: Annotated[float | None, _STEPS]
    tpot_bound_ms: Annotated[float | None, _STEPS]
    tpot_bound_by: Annotated[str | None, _STEPS]
    ttft_bound_ms: Annotated[float | None, _STEPS]
    ttft_bound_by: Annotated[str | None, _STEPS]
    prompts: Annotated[int, key("prompts answered", _FIRST)]
    prompts_unknown: Annotated[int, key("prompts of unknown length", _FIRST)]
    prompts_cache_unknown: Annotated[int, key("prompts of unknown caching", _FIRST)]
    cached_share: Annotated[float | None, key("share of prompt tokens that were cached", _FIRST)]


_ANSWERS = "ok and streamed, scheduled in the window"


class TimeParts(SummaryPart, frozen=True):
    """An answer's time from started to its last token, in parts."""

    connection: Annotated[float, key("sent − started, and a round trip of the TTFT", _ANSWERS)]
    fixed: Annotated[
        float, key("TTFT − rtt − prefill of a request that no other waits beside: the median", _ANSWERS)
    ]
    prefill: Annotated[float, key("slope of the TTFT over input tokens × input tokens", _ANSWERS)]
    queue: Annotated[float, key("rest of the TTFT", _ANSWERS)]
    decode: Annotated[float, key("last token − first token", _ANSWERS)]


class SlopeFigures(SummaryPart, frozen=True):
    """The slope of a line through a sample of the answers."""

    slope: Annotated[float, key("by Theil and Sen, in the unit of its key", _ANSWERS)]
    ci95: Annotated[tuple[float, float], key("its 95 % interval by Sen", _ANSWERS)]


_SLOPE = key("null where the amount hardly varies", _ANSWERS)


class Bottleneck(SummaryPart, frozen=True):
    """Where the time of answers went: [where the time goes](definitions.md#where-the-time-goes)."""

    verdict: Annotated[
        Literal["client", "balancer", "connection", "fixed", "prefill", "queue", "decode"],
        key(
            "what the time of an answer is limited by: the client if it is invalid, else the balancer if a "
            "replica is out, slow or stuck to, else the largest of `parts_ms`; a queue is `prefill` from "
            "`prefill_busy` 0.5 on"
        ),
    ]
    answers: Annotated[int, key("number of answers", _ANSWERS)]
    left_out: Annotated[int, key("requests that are not among them", "`requests.scheduled`")]
    mean_ms: Annotated[float, key("mean time from started to the last token, ms", _ANSWERS)]
    parts_ms: Annotated[TimeParts, key("mean of each part, ms; together `mean_ms`", _ANSWERS)]
    shares: Annotated[TimeParts, key("each part / `mean_ms`", _ANSWERS)]
    always_queued: Annotated[
        bool,
        key(
            "fewer than 20 requests were sent while no other waited: `fixed` is that of the fastest request, "
            "and `queue` may be too large",
            "ok and streamed, of the whole run",
        ),
    ]
    waiting_mean: Annotated[
        float, key("mean number of others that waited for their first token as each was sent", _ANSWERS)
    ]
    new_connections: Annotated[float, key("share that opened a connection", _ANSWERS)]
    prefill_us_per_token: Annotated[SlopeFigures | None, _SLOPE]
    prefill_busy: Annotated[
        float | None,
        key(
            "slope × input tokens / window / replicas with a name (1 without): time spent on prompts",
            _ANSWERS,
        ),
    ]
    tpot_us_per_request: Annotated[SlopeFigures | None, _SLOPE]
    tpot_us_per_context_token: Annotated[SlopeFigures | None, _SLOPE]
    cause: Annotated[str | None, key("what is wrong with a replica, in words")]


# --------------------
# Whether the answers were any good.
# --------------------


_ACCURACY = "answers with an expected one"
_PROMPTS = "prompts in both"
_REPEATED = "prompts answered more than once"
_COMPLETE = "`quality.answers`"
_KNOWN = "`quality.answers`, both known"


class Rejected(SummaryPart, frozen=True):
    """Answers that validators said no to."""

    n: Annotated[int, key("number rejected by validators", _COMPLETE)]
    ratio: Annotated[float | None, key("rejected / complete", _COMPLETE)]
    by: Annotated[dict[str, int], key("number rejected, by validator", _COMPLETE)]


class RightAnswers(SummaryPart, frozen=True):
    """Answers that were the expected ones."""

    n: Annotated[int, key("number compared", _ACCURACY)]
    correct: Annotated[int, key("number right", _ACCURACY)]
    ratio: Annotated[float | None, key("right / compared", _ACCURACY)]
    ci95: Annotated[tuple[float, float] | None, key("Wilson's interval of the ratio", _ACCURACY)]


class RightOverTime(SummaryPart, frozen=True):
    """Right answers in a part of the window."""

    start_s: Annotated[float, key("beginning of a tenth of the window, s after its start", _ACCURACY)]
    end_s: Annotated[float, key("end of a tenth of the window, s after its start", _ACCURACY)]
    n: Annotated[int, key("as `quality.accuracy`", _ACCURACY)]
    correct: Annotated[int, key("as `quality.accuracy`", _ACCURACY)]
    ratio: Annotated[float | None, key("as `quality.accuracy`", _ACCURACY)]
    ci95: Annotated[tuple[float, float] | None, key("as `quality.accuracy`", _ACCURACY)]


class RightByLoad(SummaryPart, frozen=True):
    """Right answers at a load."""

    load: Annotated[str, key("a third by concurrency: `low`, `middle` or `high`", _ACCURACY)]
    concurrency: Annotated[
        tuple[int, int], key("least and largest number of requests under way in it", _ACCURACY)
    ]
    n: Annotated[int, key("as `quality.accuracy`", _ACCURACY)]
    correct: Annotated[int, key("as `quality.accuracy`", _ACCURACY)]
    ratio: Annotated[float | None, key("as `quality.accuracy`", _ACCURACY)]
    ci95: Annotated[tuple[float, float] | None, key("as `quality.accuracy`", _ACCURACY)]


class RightDifference(SummaryPart, frozen=True):
    """A difference of accuracies."""

    difference: Annotated[float | None, key("accuracy at the highest load − at the lowest", _ACCURACY)]
    ci95: Annotated[tuple[float, float] | None, key("Newcombe's interval of that difference", _ACCURACY)]


class BesideBaseline(SummaryPart, frozen=True):
    """Accuracy here and elsewhere, on shared prompts."""

    prompts: Annotated[int, key("number of shared prompts", _PROMPTS)]
    accuracy: Annotated[RightAnswers, key("accuracy here", _PROMPTS)]
    baseline: Annotated[RightAnswers, key("accuracy idle, or of the baseline run", _PROMPTS)]
    difference: Annotated[float | None, key("accuracy here − that of the baseline", _PROMPTS)]
    ci95: Annotated[tuple[float, float] | None, key("Newcombe's interval of that difference", _PROMPTS)]


class Consistency(SummaryPart, frozen=True):
    """Equal answers to equal prompts."""

    prompts: Annotated[int, key("number of prompts", _REPEATED)]
    answers: Annotated[int, key("number of answers to them", _REPEATED)]
    prompts_equal: Annotated[float | None, key("share of prompts all of whose answers are equal", _REPEATED)]
    pairs_equal: Annotated[
        float | None, key("share of pairs of answers to one prompt that are equal", _REPEATED)
    ]


class AnswerLengths(SummaryPart, frozen=True):
    """Generated against asked output tokens."""

    n: Annotated[int, key("number of answers", _KNOWN)]
    at_limit: Annotated[float | None, key("share with exactly as many tokens as asked", _KNOWN)]
    over: Annotated[float | None, key("share with more tokens than asked", _KNOWN)]
    mean_relative: Annotated[float | None, key("mean of (generated − asked) / asked", _KNOWN)]


class PartQuality(SummaryPart, frozen=True):
    """Of the answers with one name or of one class."""

    answers: Annotated[int, key("number of complete answers", "ok or rejected, scheduled in the window")]
    rejected: Rejected
    accuracy: RightAnswers


class Quality(SummaryPart, frozen=True):
    """Whether answers were right, accepted, alike where they should be, as long as asked."""

    answers: Annotated[int, key("number of complete answers", "ok or rejected, scheduled in the window")]
    finish_reasons: Annotated[dict[str, int], key("number with each finish reason", _COMPLETE)]
    rejected: Rejected
    accuracy: RightAnswers
    over_time: list[RightOverTime]
    by_load: list[RightByLoad]
    load_effect: RightDifference | None
    baseline: BesideBaseline | None
    consistency: Consistency
    length: AnswerLengths
