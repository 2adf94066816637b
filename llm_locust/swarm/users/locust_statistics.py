"""Requests in Locust's own statistics."""

from contextlib import suppress
from typing import Any

from locust.env import Environment

from llm_locust.core.other_requests import OtherTable
from llm_locust.core.record import Outcome, RequestRecord
from llm_locust.metrics.error_text import ErrorKinds


class LlmRequestError(Exception):
    """A failed request, as Locust's failure table shows it."""


class _OwnContext(dict[str, Any]):
    """The context of our own events; it is empty."""


class LocustStatistics:
    """Fires one request event per judged record, so that Locust's own statistics are correct.

    A cancelled request, or a first try, is neither a success nor a failure of the server. Locust has no such
    category, so these are only in the records.
    """

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._failures = ErrorKinds()

    def add(self, record: RequestRecord) -> None:
        """Fire the event of a request that ended ok or failed."""
        failure = None
        if record.outcome is not Outcome.OK:
            failure = LlmRequestError(self._failures.of(f"{record.outcome}: {record.error}"))
        self._environment.events.request.fire(
            request_type=record.endpoint,
            name=record.name,
            response_time=_elapsed_ms(record),
            response_length=record.bytes_received,
            exception=failure,
            context=_OwnContext(),
        )


class OtherStatistics:
    """Counts the events of requests that are not ours, until :meth:`end`."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self.table = OtherTable()
        environment.events.request.add_listener(self._on_request)

    def end(self) -> None:
        """Count no more."""
        with suppress(ValueError):  # it has ended before
            self._environment.events.request.remove_listener(self._on_request)

    def _on_request(
        self,
        request_type: object = "",
        name: object = "",
        response_time: object = None,
        exception: object = None,
        context: object = None,
        **_: object,
    ) -> None:
        if not isinstance(context, _OwnContext):
            self.table.add(request_type, name, response_time, failed=exception is not None)


def _elapsed_ms(record: RequestRecord) -> float:
    """End-to-end latency; for a failure, the time until it failed."""
    if record.outcome is Outcome.OK and len(record.arrivals_ns):
        return float(record.arrivals_ns[-1]) * 1e-6
    begin = record.started_ns if record.sent_ns is None else record.sent_ns
    return (record.ended_ns - begin) * 1e-6
