"""Whether the answers were any good."""

from typing import Annotated

from llm_locust.metrics.summary_types.base import SummaryPart, key

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
