"""``summary.json``: every number of a run, computed once, from its records.

Its keys are a contract. What is not defined is None."""

from msgspec import structs

from llm_locust.core.batch import Requests
from llm_locust.core.manifest import Manifest
from llm_locust.figures.arms import arms
from llm_locust.figures.figure import Run
from llm_locust.figures.gate_rules import GateOutcome
from llm_locust.figures.gates import Unrecorded, gates_of, judged
from llm_locust.figures.latency import LiveEnd
from llm_locust.figures.parts import PartFigures, part_of_all
from llm_locust.figures.summary import FIGURES, SUMMARY_SCHEMA, Summary
from llm_locust.figures.user_time import UserTime
from llm_locust.metrics.answers import Answers
from llm_locust.metrics.measured import Measured, measure
from llm_locust.metrics.question import PLAIN, Question
from llm_locust.metrics.requests.judgement import Missing
from llm_locust.metrics.select import without_first_tries
from llm_locust.metrics.server_series import ServerSeries


def summarise(
    requests: Requests,
    manifest: Manifest,
    question: Question = PLAIN,
    *,
    rows_of_run: int | None = None,
    measured: Measured | None = None,
    server: ServerSeries | None = None,
    live: LiveEnd | None = None,
) -> Summary:
    """The summary of requests, with None for what is not defined.

    The manifest's option ``slo_from`` (``sent`` or ``scheduled``) says where the SLO is measured from;
    without it an open loop is measured from scheduled, a closed one from sent.

    Args:
        requests: a batch, or requests that are read part by part and never are in memory as a whole. First
            tries of requests that were sent again are counted, and are in no other figure.
        rows_of_run: where ``requests`` are a selection, the number that they were selected from:
            completeness is the run's, and of lost requests it is not known whether they belong here.
        measured: what :func:`~llm_locust.metrics.measured.measure` gives for all of this, where it is there.
        server: what was scraped of the servers, in the same window, for ``server`` and ``energy``; both are
            of all requests, so of a selection there is neither.
        live: the run's last live figures, for ``live_check``, which a selection has not either.

    Raises:
        ValueError: as :class:`~llm_locust.metrics.question.Question` and
            :func:`~llm_locust.metrics.measured.find_window` raise it.
    """
    stored, requests = len(without_first_tries(requests).stored), without_first_tries(requests)
    m = measured or measure(requests, manifest, question)
    of_selection = rows_of_run is not None
    rows = stored if rows_of_run is None else rows_of_run
    missing = _missing(manifest, rows, question, of_selection=of_selection)
    run = Run(
        requests=requests,
        m=m,
        manifest=manifest,
        question=question,
        rows=rows,
        of_selection=of_selection,
        server=None if of_selection else server,
        live=live,
        answers=Answers.of(requests),
        missing=missing.placed,
        whole=part_of_all(m, question.places, missing.placed),
    )
    values = {name: run.figure(each.compute) for name, each in FIGURES.items() if each.compute is not None}
    summary = Summary(schema=SUMMARY_SCHEMA, gates=[], **values)
    if manifest.arms:
        return _with_arms(summary, run, missing)
    return structs.replace(summary, gates=gates_of(summary, run, missing))


def _missing(manifest: Manifest, rows: int, question: Question, *, of_selection: bool) -> Unrecorded:
    """The requests without a record that figures may be of; ``rows`` are all that the run has."""
    unsent = manifest.requests_unsent(question.warmup_of(manifest))
    of_run = Missing(manifest.requests_lost(rows), unsent)
    if of_selection:
        return Unrecorded.of_selection(of_run, manifest, question.where)
    return Unrecorded.of_run(of_run)


def _with_arms(summary: Summary, run: Run, missing: Unrecorded) -> Summary:
    """With ``arms``, and each gate on each of them."""
    manifest, question = run.manifest, run.question

    def gates(part: PartFigures, m: Measured, times: UserTime | None) -> list[GateOutcome]:
        asked_for = question.gates_of(manifest)
        return judged(asked_for, part, m, question.places, missing.of_arm(), times)

    of = (run.requests, manifest, question, run.m.window, missing.most)
    found, outcomes = arms(*of, of_selection=run.of_selection, gates=gates)
    return structs.replace(summary, arms=found, gates=outcomes)
