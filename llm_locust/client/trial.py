"""Streams over a run's own client, one after another by each of several users, for a given time."""

import time

import gevent

from llm_locust.client.http.pool import Pool, Target
from llm_locust.client.http.timeouts import Timeouts
from llm_locust.client.stream import Answer, Call, LlmClient
from llm_locust.core.record import Outcome, RequestRecord

_PATH = "/chat/completions"
_BODY = b'{"model":"known","stream":true,"messages":[{"role":"user","content":"t"}]}'

#: Time limits of a call, and how long all of them may take beyond the time for which they are asked.
_LIMITS = Timeouts(first_s=5.0, gap_s=5.0, total_s=6.0)
_BEYOND_S = 6.0

#: Time in which the users start, evenly.
_START_S = 0.5


def stream_for(target: Target, users: int, seconds: float) -> list[RequestRecord]:
    """Ask for chat streams with this many users at once; return the record of every call.

    The first call is made alone, and no other one is made if it fails. Each user makes one call at a time,
    and none after ``seconds``. Takes at most 12 s more.
    """
    records: list[RequestRecord] = []

    def keep(answer: Answer) -> None:
        records.append(answer.record)

    pool = Pool(target, connect_timeout_s=5.0)
    client = LlmClient(pool, sink=keep, timeouts=_LIMITS, worker="doctor")

    def ask() -> Outcome:
        call = Call(request_id=client.new_request_id(), name="calibration", scheduled_ns=time.time_ns())
        return client.post(_PATH, _BODY, call).record.outcome

    def use(place: int) -> None:
        gevent.sleep(_START_S * place / users)
        while time.monotonic() < end_s:
            ask()

    try:
        if ask() is Outcome.OK:
            end_s = time.monotonic() + seconds
            greenlets = [gevent.spawn(use, place) for place in range(users)]
            gevent.joinall(greenlets, timeout=seconds + _BEYOND_S)
            gevent.killall(greenlets)
    finally:
        pool.close()
    return records
