"""What came of what the workers announced."""

from typing import Annotated

from llm_locust.core.manifest import worker_names
from llm_locust.metrics.summary_types.base import SummaryPart, key

_WHOLE = "the whole run"
_WORKER = "a worker, the whole run"


class MasterHealth(SummaryPart, frozen=True):
    """How the master was."""

    clock_steps: Annotated[int | None, key("how often its clock was set", "the process, the whole run")]
    hub_lag_ms_p99: Annotated[
        float | None, key("p99 of its event loop's delay, ms", "the process, the whole run")
    ]
    hub_lag_ms_max: Annotated[
        float | None, key("largest delay of its event loop, ms", "the process, the whole run")
    ]
    cpu_percent_max: Annotated[
        float | None, key("its CPU, % of a core: the largest mean of 3 s", "the process, the whole run")
    ]
    rss_mib_max: Annotated[
        float | None, key("its largest resident memory, MiB", "the process, the whole run")
    ]
    steal_percent: Annotated[float | None, key("as `client.steal_percent_max`", "the process, the whole run")]
    throttled_percent: Annotated[
        float | None, key("as `client.throttled_percent_max`", "the process, the whole run")
    ]
    run_queue_percent: Annotated[
        float | None, key("as `client.run_queue_percent_max`", "the process, the whole run")
    ]


class WorkerCompleteness(SummaryPart, frozen=True):
    """What one worker had, what came of it, and how it was."""

    id: Annotated[str, key("its id", _WORKER)]
    index: Annotated[int, key("its number", _WORKER)]
    state: Annotated[str, key("what became of it: `running`, `done`, `left` or `lost`", _WORKER)]
    late: Annotated[bool, key("it joined after the start", _WORKER)]
    joined_s: Annotated[float | None, key("when it joined, s after the start", _WORKER)]
    heard_s: Annotated[float | None, key("when it was last heard, s after the start", _WORKER)]
    announced: Annotated[
        int | None, key("records that it said it had made; null where it never said", _WORKER)
    ]
    received: Annotated[int, key("records of it that the master has", _WORKER)]
    missing: Annotated[int, key("announced − received", _WORKER)]
    in_flight: Annotated[int, key("requests that it had under way when it was last heard", _WORKER)]
    unrecorded: Annotated[int, key("requests of it without a record", _WORKER)]
    batches: Annotated[int, key("batches that it announced", _WORKER)]
    batches_received: Annotated[str | None, key("numbers of the batches that came", _WORKER)]
    resent: Annotated[int, key("batches of it that came more than once", _WORKER)]
    dropped: Annotated[int, key("records that neither its disk nor its memory could hold", _WORKER)]
    held_back: Annotated[int, key("requests of it that waited for `--max-in-flight`", _WORKER)]
    unsent: Annotated[int, key("requests of it that were due and were never sent", _WORKER)]
    clock_offset_ms: Annotated[float | None, key("clock offset, ms", _WORKER)]
    clock_error_ms: Annotated[float | None, key("clock error, ms", _WORKER)]
    clock_steps: Annotated[int | None, key("how often its clock was set", _WORKER)]
    hub_lag_ms_p99: Annotated[float | None, key("p99 of its event loop's delay, ms", _WORKER)]
    hub_lag_ms_max: Annotated[float | None, key("largest delay of its event loop, ms", _WORKER)]
    cpu_percent_max: Annotated[float | None, key("its CPU, % of a core: the largest mean of 3 s", _WORKER)]
    rss_mib_max: Annotated[float | None, key("its largest resident memory, MiB", _WORKER)]
    steal_percent: Annotated[float | None, key("as `client.steal_percent_max`", _WORKER)]
    throttled_percent: Annotated[float | None, key("as `client.throttled_percent_max`", _WORKER)]
    run_queue_percent: Annotated[float | None, key("as `client.run_queue_percent_max`", _WORKER)]


class Completeness(SummaryPart, frozen=True):
    """Whether all of the run is in the records."""

    complete: Annotated[
        bool,
        key("nothing is missing: see [completeness](definitions.md#validity-of-the-measurement)", _WHOLE),
    ]
    cut_short: Annotated[
        bool, key("a fault ended the run before its time, or the end of its load was never recorded", _WHOLE)
    ]
    workers_expected: Annotated[int, key("number of workers that were asked for", _WHOLE)]
    workers_seen: Annotated[int, key("number of workers that joined", _WHOLE)]
    workers_late: Annotated[int, key("number of workers that joined after the start", _WHOLE)]
    workers_left: Annotated[int, key("number of workers that left before the stop", _WHOLE)]
    workers_lost: Annotated[int, key("number of workers that were lost", _WHOLE)]
    records_announced: Annotated[int, key("number of records that workers said they had made", _WHOLE)]
    records_received: Annotated[int, key("number of records that the master received", _WHOLE)]
    records_stored: Annotated[int, key("number of records that the run has", _WHOLE)]
    records_lost: Annotated[int, key("number of requests without a record, as `requests.lost`", _WHOLE)]
    records_dropped: Annotated[int, key("number of records that neither disk nor memory could hold", _WHOLE)]
    batches_resent: Annotated[int, key("batches that came more than once", _WHOLE)]
    held_back: Annotated[int, key("requests that waited for `--max-in-flight`", _WHOLE)]
    held_back_s_max: Annotated[float, key("the longest wait for `--max-in-flight`, s", _WHOLE)]
    backoff_waits: Annotated[int, key("waits of users after a failed request (`--backoff`)", _WHOLE)]
    backoff_s: Annotated[float, key("sum of these waits: user time without a request, s", _WHOLE)]
    backoff_users_mean: Annotated[
        float | None,
        key("users that waited so at a time: `backoff_s` / duration of the load; null if unknown", _WHOLE),
    ]
    unsent: Annotated[int, key("requests that were due and were never sent", _WHOLE)]
    in_flight_lost: Annotated[int, key("requests that lost workers had under way", _WHOLE)]
    missing: Annotated[dict[str, int], key("records missing, by worker", _WHOLE)]
    lost: Annotated[list[str], key("lost workers", _WHOLE)]
    torn: Annotated[list[str], key("damaged files", _WHOLE)]
    faults: Annotated[
        dict[str, list[str]],
        key("what makes a worker's count of records doubtful, in words, by worker", _WHOLE),
    ]
    messages_dropped: Annotated[
        int, key("messages that did not fit, or came from nobody that the master knows", _WHOLE)
    ]
    messages_dropped_by: Annotated[
        dict[str, dict[str, int]], key("the same by sender and kind of message", _WHOLE)
    ]
    workers: list[WorkerCompleteness]
    master: MasterHealth

    @property
    def names(self) -> dict[str, str]:
        """Id of each worker -> what reports call it."""
        return worker_names(self.workers)
