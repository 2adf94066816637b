"""What workers that are gone had still to send: nobody takes it over.

An open loop's schedule, and the requests of ``--num-requests``, are divided once, among the workers of the
run's start.
"""

import math
from collections.abc import Iterable, Mapping

from llm_locust.swarm.channel.messages import RateMessage, StageMessage
from llm_locust.swarm.open_loop.load import Scheduled, Span, scheduled
from llm_locust.swarm.process.event_loop import off_the_hub
from llm_locust.swarm.run.roster import Participant
from llm_locust.swarm.run.run import ActiveRun

#: A worker whose load ended so shortly before the run's left with it: a Ctrl-C reaches both.
TOGETHER_S = 2.0

#: Workers that a reason names.
_MOST_NAMED = 3


def note_rate(run: ActiveRun | None, message: RateMessage | StageMessage) -> None:
    """Note a change of an open loop's rate, which the workers are told."""
    if run is not None and message.run == run.info["id"] and message.rate is not None:
        drained = isinstance(message, StageMessage) and message.step == "drain"
        run.rates[message.at_ns] = 0.0 if drained else message.rate


def note_undelivered(run: ActiveRun) -> None:
    """Count what workers that left, or were lost, had still to send; with some, the run is cut short.

    Call it when all final counts are in. In an open loop these requests are unsent: those due before the end
    of the load, or all if the others have sent their shares to the end.
    """
    if run.stopped_ns is None or run.finishing:
        return
    starters = {worker: run.roster[worker] for worker in run.roster if not run.roster[worker].late}
    gone = {worker: p for worker, p in starters.items() if (p.left or not p.done) and not _is_sent([p])}
    to_its_end = _is_sent(p for worker, p in starters.items() if worker not in gone)
    if run.open_loop:
        for index, worker in enumerate(starters):
            if worker in gone:
                gone[worker].never_sent = _unsent(run, index, gone[worker], to_its_end)
        rests = {worker: p.never_sent.requests for worker, p in gone.items()}
    else:
        rests = {worker: _quota(p) for worker, p in gone.items() if to_its_end}
    if any(rests.values()):
        run.cut(_reason(rests), in_order=True)


def _unsent(run: ActiveRun, index: int, gone: Participant, to_its_end: bool) -> Scheduled:
    """What the schedule had for a worker after it was gone."""
    assert run.stopped_ns is not None
    told_ns = None if gone.counts is None else gone.counts.load.until_ns
    from_s = _schedule_s(run, gone.heard_ns) if told_ns is None else told_ns * 1e-9
    stopped_s = _schedule_s(run, run.stopped_ns)
    if not to_its_end and stopped_s - from_s <= TOGETHER_S:
        return Scheduled()
    span = Span(from_s, math.inf if to_its_end else stopped_s)
    measured_s = _schedule_s(run, run.started_ns) + run.settings.run.warmup_s
    return off_the_hub(scheduled, run.settings.load, run.info, index, run.rates, span, measured_s)


def _is_sent(participants: Iterable[Participant]) -> bool:
    """Whether these workers, at least one, have sent all of their shares."""
    found = [p.counts is not None and p.counts.load.spent for p in participants]
    return bool(found) and all(found)


def _quota(p: Participant) -> int:
    return 0 if p.counts is None else p.counts.load.share_left


def _schedule_s(run: ActiveRun, at_ns: int) -> float:
    return (at_ns - run.info["origin_ns"]) * 1e-9


def _reason(rests: Mapping[str, int]) -> str:
    lacking = [worker for worker, n in rests.items() if n]
    more = len(lacking) - _MOST_NAMED
    names = ", ".join(lacking[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
    who = f"worker {names} was" if len(lacking) == 1 else f"workers {names} were"
    n = sum(rests.values())
    what = "1 request was" if n == 1 else f"{n} requests were"
    return f"{what} never sent: {who} gone before the end, and nobody takes over a share"
