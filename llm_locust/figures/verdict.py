"""Verdict on a run: the rules by which its result becomes the exit code."""

from collections.abc import Sequence
from dataclasses import dataclass

from llm_locust.core import EXIT_GATE, EXIT_INCOMPLETE, EXIT_INVALID
from llm_locust.core.manifest import Manifest
from llm_locust.figures.completeness import Completeness
from llm_locust.figures.gate_rules import GateOutcome
from llm_locust.figures.search import SearchAnswer
from llm_locust.figures.stages import Stage
from llm_locust.figures.summary import Summary
from llm_locust.figures.user_time import MOST_HUNG
from llm_locust.metrics.limits import STANDSTILL, parse_gates
from llm_locust.metrics.standstill import too_still

#: Requests of an open loop that were due and not sent: with more of all, the load was not the one asked for.
MOST_UNSENT = 0.1


@dataclass(frozen=True, slots=True)
class RunVerdict:
    """An exit code and, unless it is 0, the reason in one sentence without a full stop.

    ``is_of_failures``: it is only because requests failed, so that ``--exit-code-on-error`` may set the code.
    ``is_undecided``: no gate broke, and some cannot tell.
    """

    code: int
    reason: str = ""
    is_of_failures: bool = False
    is_undecided: bool = False


def verdict(summary: Summary, manifest: Manifest, allow_incomplete: bool = False) -> RunVerdict | None:
    """The verdict on a run or on a report, by the first rule that applies; None if no gate was given and
    nothing but failed requests, beside some that succeeded, is left to judge.

    1: a gate broke in a run that was cut short, and the rest of the run could not have repaired it. 4:
    records are missing or the run was cut short (unless ``allow_incomplete``). 3: the measurement is
    invalid. 1: a gate broke. 3: no gate broke, and no request succeeded. 1: the server stood still for much
    of the window, and no gate says how long it may. 1: users or requests hung, and no gate is on goodput. 1:
    requests failed, and no gate limits that. 3: many requests were never sent, and no gate is on goodput, or
    a gate cannot be judged. A gate on a part of the records, or on numbers that are the client's own, says
    nothing about the server: therefore 4 and 3 come before 1.
    """
    part = summary.completeness
    broken_for_good = [gate for gate in summary.gates if gate.for_good]
    if broken_for_good and part.complete and not allow_incomplete and not _invalid(summary, manifest):
        return RunVerdict(EXIT_GATE, _for_good(broken_for_good[0], summary))
    if (not part.complete or part.cut_short) and not allow_incomplete:
        return RunVerdict(EXIT_INCOMPLETE, _gap(summary, part))
    if reason := _invalid(summary, manifest):
        return RunVerdict(EXIT_INVALID, reason)
    broken = sum(not (gate.passed or gate.undecided) for gate in summary.gates)
    if broken:
        return RunVerdict(EXIT_GATE, f"{broken} of {len(summary.gates)} gates failed")
    if not summary.requests.ok and _is_judged(summary):
        return RunVerdict(EXIT_INVALID, f"none of the {summary.requests.scheduled} requests succeeded")
    asked = [gate for each in summary.gates for gate in parse_gates(each.text)]
    is_limited = any(gate.metric == STANDSTILL and gate.is_upper for gate in asked)
    if summary.gates and not is_limited and (still := stood_still(summary)):
        return RunVerdict(EXIT_GATE, still)
    of_users = any(gate.metric == "goodput" and not gate.is_upper for gate in asked)  # and of their time
    if summary.gates and not of_users and (why := hung(summary)):
        return RunVerdict(EXIT_GATE, why)
    is_search = summary.search is not None  # beyond its edge requests may fail
    if not summary.gates:
        return RunVerdict(0) if is_search else None
    may_fail = is_search or _is_selection(summary) or any(gate.limits_failures for gate in asked)
    if summary.requests.failed and not may_fail:
        of = f"{summary.requests.failed} of {summary.requests.population} requests failed"
        why = f"{of}, and no gate limits that: add error_rate<1% or goodput>=95%"
        return RunVerdict(EXIT_GATE, why, is_of_failures=True)
    if not of_users and (why := _never_sent(summary)):
        return RunVerdict(EXIT_INVALID, why)
    if undecided := [gate for gate in summary.gates if gate.undecided]:
        return RunVerdict(EXIT_INVALID, _undecided(undecided, len(summary.gates)), is_undecided=True)
    return RunVerdict(0)


def _for_good(gate: GateOutcome, summary: Summary) -> str:
    """Why a gate decides though the run was cut short."""
    reason = f"{gate.shown} is broken for good: {gate.reason}, which no rest of the run could have repaired"
    return f"{reason}; the run was cut short: {summary.run.stop_reason or 'a fault'}"


def _undecided(gates: Sequence[GateOutcome], n: int) -> str:
    """That the run does not show whether some of its gates hold."""
    return f"{len(gates)} of {n} gates cannot be judged: {gates[0].shown}: {gates[0].reason}"


def _is_judged(summary: Summary) -> bool:
    """Whether requests must be there and succeed: who chose some to look at may have chosen failed ones."""
    return bool(summary.gates) or not _is_selection(summary)


def _is_selection(summary: Summary) -> bool:
    return summary.analysis is not None and summary.analysis.where is not None


def stood_still(summary: Summary) -> str:
    """What :func:`~llm_locust.metrics.standstill.too_still` says, and which gate would judge it; else empty.

    The loads of a sweep have a check of their own, and a standstill of selected requests may be none of the
    others.
    """
    part = summary.reliability.standstill
    if part is None or summary.is_sweep or _is_selection(summary):
        return ""
    still = too_still(part.seconds, summary.window.seconds)
    return still and f"{still}, and no --gate on {STANDSTILL} says how long it may"


def hung(summary: Summary) -> str:
    """That users, or requests of an open loop, hung for more than :data:`MOST_HUNG` of all; else empty."""
    times, n = summary.user_time, summary.reliability.hung
    if times is not None and times.have_hung(summary.window.seconds):
        return f"{times.hung_text}, and no --gate on goodput says how much of their time may be lost"
    is_whole = not (summary.is_sweep or _is_selection(summary))
    if summary.is_open_loop and is_whole and n > MOST_HUNG * summary.requests.scheduled:
        return f"{hung_requests(summary)}, and no --gate on goodput says how many may"
    return ""


def hung_requests(summary: Summary) -> str:
    """How many requests of an open loop hung until they were given up."""
    n, of = summary.reliability.hung, summary.requests.scheduled
    return f"{n:,} of {of:,} requests hung: nothing more came of them until they were given up"


def _never_sent(summary: Summary) -> str:
    """That more than :data:`MOST_UNSENT` of an open loop's requests were never sent; else empty.

    All gates but one on goodput are on those that were sent.
    """
    unsent = summary.requests.unsent or 0
    of = summary.requests.scheduled + unsent
    if unsent <= MOST_UNSENT * of or summary.is_sweep or _is_selection(summary):
        return ""
    return (
        f"{unsent:,} of {of:,} requests were never sent, which only a gate on goodput judges: add one, or "
        "lower the rate"
    )


def nothing_measured(summary: Summary, why: str | None = None) -> str:
    """That no request is in the window, and why."""
    asked = summary.analysis.where if summary.analysis is not None else None
    sent_none = not summary.completeness.records_received and not summary.requests.lost
    none = "no request is in the window" if asked is None else f"no request matches {asked}"
    if asked is None and sent_none:
        none = "the load sent no request"
    return f"nothing was measured: {why or summary.window.why_empty or none}"


def _gap(summary: Summary, part: Completeness) -> str:
    if not part.complete:
        return "records are missing; --allow-incomplete accepts that"
    return f"the run was cut short: {summary.run.stop_reason or 'a fault'}; --allow-incomplete accepts that"


def _invalid(summary: Summary, manifest: Manifest) -> str:
    """Why the measurement is invalid; empty if it is not."""
    if not summary.requests.scheduled and _is_judged(summary):
        return nothing_measured(summary, summary.run.stop_reason if manifest.task_exceptions else None)
    if n := summary.client.misplaced:
        why = "a clock was set, and the window and its rates are wrong"
        return f"{n} requests begin before the load or end after it: {why}"
    if raised := sum(each.count for each in manifest.task_exceptions):
        times = "an exception" if raised == 1 else f"{raised} exceptions"
        return f"the locustfile raised {times} in its tasks: the load was not the one that it describes"
    if summary.search is not None:
        reason = _no_answer(summary.search.answer)
    else:
        reason = _no_results(summary, manifest.require_valid) if summary.is_sweep else ""
    if reason:
        return reason
    if manifest.require_valid and summary.client.verdict == "invalid":
        return "the client is invalid, and --require-valid was given"
    return ""


def _no_answer(answer: SearchAnswer) -> str:
    """Why a search is invalid: it has no answer, and then no gate on it can tell anything of the server."""
    has_answer = any(found is not None for found in (answer.load, answer.at_least, answer.at_most))
    return "" if has_answer else f"the search has no answer: {answer.why}"


def _no_results(summary: Summary, require_valid: bool) -> str:
    """Why the stages of a sweep are invalid: none is a result, or one is not and that was required.

    A load above the capacity is a part of a sweep: that the server was saturated is never invalid by itself.
    That only the client speaks against a stage is invalid where ``require_valid`` asks for it, as of a run.
    """
    found = [stage for stage in summary.stages or [] if stage.repeated_as is None]
    wrong = [
        stage for stage in found if not (stage.is_result or (_is_only_clients(stage) and not require_valid))
    ]
    if found and len(wrong) == len(found):
        return f"none of the {len(found)} stages is a result: stage {wrong[0].number}: {wrong[0].reasons[0]}"
    others = [
        stage for stage in wrong if not (stage.saturated and len(stage.reasons) == 1 + stage.all_failed)
    ]
    if require_valid and others:
        first = others[0]
        return f"stage {first.number} is not a result, and --require-valid was given: {first.reasons[0]}"
    return ""


def _is_only_clients(stage: Stage) -> bool:
    """Whether nothing but the client speaks against it: an invalid one excuses nothing else."""
    return stage.client == "invalid" and len(stage.reasons) == 1
