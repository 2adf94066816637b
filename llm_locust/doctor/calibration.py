"""The client's times against those of a server that knows its own, by request id."""

import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from llm_locust.client.http.clock import ANCILLARY_BYTES, SO_TIMESTAMPNS
from llm_locust.client.http.target import Target
from llm_locust.client.probing import stream_for
from llm_locust.core.manifest import CalibrationFacts
from llm_locust.core.record import Outcome, RequestRecord
from llm_locust.doctor.finding import Finding, OutOfTimeError, TimeLeft, fail, ok, skipped, warn
from llm_locust.doctor.known_server import Logged
from llm_locust.figures.client import FEWEST, calibration_text
from llm_locust.figures.client_rules import LAG_FLOOR_MS
from llm_locust.figures.text import clean, count, number, percent, plural, short
from llm_locust.host import MARGIN, descriptors_for, file_limits, raise_file_limit
from llm_locust.metrics.stats.censoring import ordered, percentile

#: How long the users of a calibration make calls, in seconds, and the most that all of it takes.
SECONDS, WHOLE_S = 3.0, 18.0

#: Error of the client's times (p99) from which it is a warning; also for what the log itself leaves open.
WARN_MS = LAG_FLOOR_MS

#: Most streams at once, and most tokens per second of all of them: beyond that the server takes the cores
#: that the client needs.
MOST_STREAMS, MOST_TOKENS_PER_S = 4_000, 20_000

#: Gap between two tokens where there are few streams, and how long the tokens of an answer take.
_GAP_S, _ANSWER_S = 0.020, 1.0
_LEAST_TOKENS = 5

_LOG = msgspec.msgpack.Decoder(list[Logged])

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrated:
    """The client's error against a server's log.

    The server knows each write as a span, from just before it to just after it: an error is the distance from
    that span, 0 inside it. A true TTFT is from the kernel's receive stamp of the request to the write of the
    first token event; a true gap is from write to write.

    Attributes:
        streams: users at once, each with a stream; ``asked`` were asked for.
        ttft_ms, itl_ms: errors of every TTFT and every gap, absolute, in milliseconds.
        open_ms: length of every span, in milliseconds: what the log leaves open.
        tokens_per_s: token events by the server's log; NaN for fewer than two.
        wide_ratio: share of the client's reads that had several token events: read late, they share a time.
        answers: number of answers in the client's records.
        astray: how many of them are not ``ok``, or not in the log, or have another number of token events.
        why: what was wrong with the first of those.
        clock_was_set: the wall clock was set meanwhile.
    """

    asked: int
    streams: int
    ttft_ms: Floats
    itl_ms: Floats
    open_ms: Floats
    tokens_per_s: float
    wide_ratio: float
    answers: int
    astray: int = 0
    why: str = ""
    clock_was_set: bool = False


def calibrate(users: int, time_left: TimeLeft) -> Calibrated | str:
    """Measure the client at ``users`` streams; the reason, if it cannot be measured. Takes about 5 s."""
    try:
        if time_left.at_most(WHOLE_S) < WHOLE_S:
            raise OutOfTimeError
        records, log, streams = measure(users, SECONDS)
    except OutOfTimeError:
        return "no time was left"
    except OSError as e:
        return f"the server of known times cannot be used: {e.strerror or e}"
    return compare(records, log, asked=users, streams=streams)


def measure(users: int, seconds: float) -> tuple[list[RequestRecord], list[Logged], int]:
    """The client's records and the server's log of calls for so long; and the number of streams at once.

    Raises:
        OSError: the server cannot be started, or printed no log.
    """
    streams = streams_of(users)
    gap_s = max(_GAP_S, streams / MOST_TOKENS_PER_S)
    tokens = max(_LEAST_TOKENS, round(_ANSWER_S / gap_s))
    with closing(socket.create_server(("127.0.0.1", 0), backlog=streams)) as listener:
        if ANCILLARY_BYTES:  # the sockets that it accepts have the option too
            listener.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        port = listener.getsockname()[1]
        words = (listener.fileno(), round(gap_s * 1e9), tokens, descriptors_for(streams, targets=1))
        server = subprocess.Popen(
            [sys.executable, "-P", "-m", "llm_locust.doctor.known_server", *map(str, words)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=[listener.fileno()],
            start_new_session=True,  # an interrupt is for this process, whose end ends the server
        )
    try:
        records = stream_for(Target.parse(f"http://127.0.0.1:{port}/v1"), streams, seconds)
        printed, said = server.communicate(timeout=3.0)
        return records, _LOG.decode(printed), streams
    except (subprocess.TimeoutExpired, msgspec.MsgspecError) as e:
        words_said = said.decode(errors="replace").strip() if isinstance(e, msgspec.MsgspecError) else ""
        raise OSError(f"it printed no log: {short(clean(words_said[-200:]), 200)}") from e
    finally:
        if server.poll() is None:
            server.kill()
        server.wait()
        for pipe in (server.stdin, server.stdout, server.stderr):
            if pipe is not None:
                pipe.close()


def streams_of(users: int) -> int:
    """Streams of these users, as many as fit this process."""
    streams = min(users, MOST_STREAMS)
    if raise_file_limit(descriptors_for(streams, targets=1)):
        return streams
    limit = file_limits().soft
    return streams if limit is None else max(1, min(streams, limit - MARGIN))


def compare(
    records: Sequence[RequestRecord], log: Sequence[Logged], *, asked: int, streams: int
) -> Calibrated:
    """Hold the client's records against the server's log, by request id."""
    known = {entry.request_id: entry for entry in log}
    ttft, itl, whys = [np.empty(0)], [np.empty(0)], []
    for record in records:
        entry = known.get(record.request_id)
        why = _astray(record, entry)
        if why is not None:
            whys.append(why)
            continue
        assert entry is not None
        before, after = np.array(entry.before_ns), np.array(entry.after_ns)
        arrivals = record.arrivals_ns
        if entry.received_ns is not None:
            ttft.append(
                _error_ms(arrivals[:1], before[:1] - entry.received_ns, after[:1] - entry.received_ns)
            )
        itl.append(_error_ms(np.diff(arrivals), before[1:] - after[:-1], after[1:] - before[:-1]))
    spans = [np.array(e.after_ns) - np.array(e.before_ns) for e in log]
    writes = np.sort(np.concatenate([np.array(e.before_ns) for e in log] or [np.empty(0)]))
    took_s = float(writes[-1] - writes[0]) / 1e9 if len(writes) else 0.0
    return Calibrated(
        asked=asked,
        streams=streams,
        ttft_ms=np.concatenate(ttft),
        itl_ms=np.concatenate(itl),
        open_ms=np.concatenate(spans or [np.empty(0)]) / 1e6,
        tokens_per_s=(len(writes) - 1) / took_s if took_s > 0 else float("nan"),
        wide_ratio=sum(r.coalesced_reads for r in records) / max(1, sum(r.reads for r in records)),
        answers=len(records),
        astray=len(whys),
        why=whys[0] if whys else "",
        clock_was_set=any(record.clock_step_ns is not None for record in records),
    )


def _astray(record: RequestRecord, entry: Logged | None) -> str | None:
    """Why an answer cannot be held against the log; None if it can."""
    if record.outcome is not Outcome.OK:
        return f"{record.outcome}: {record.error or 'no reason given'}"
    if entry is None:
        return "it is not in the server's log"
    read, written = len(record.arrivals_ns), len(entry.before_ns)
    if read != written:
        return f"{plural(read, 'token event')} of {count(written)} written"
    return None


def _error_ms(measured: NDArray[np.int64], earliest: NDArray[np.int64], latest: NDArray[np.int64]) -> Floats:
    """Distance of each value from the span that has the true one."""
    outside: NDArray[np.int64] = np.maximum(np.maximum(earliest - measured, measured - latest), 0)
    return outside / 1e6


def judge_calibration(seen: Calibrated | str | None) -> Finding:
    """The client's error at the run's number of streams; ``seen`` is a text where it was not measured."""
    if seen is None:
        return skipped("not asked for: --calibrate")
    if isinstance(seen, str):
        return skipped(seen)
    if seen.clock_was_set:
        return warn(_CLOCK_WAS_SET, "try again")
    found = facts(seen, seen.asked)
    figure = calibration_text(found)
    if seen.astray or not seen.answers:
        return fail(
            figure, "use fewer users in this process (more workers), and stop other programs on this machine"
        )
    if found.open_ms is None or found.open_ms >= WARN_MS:
        return warn(
            f"{figure}; the server knows its own times to {number(found.open_ms)} ms only",
            "stop other programs on this machine: it is too busy to tell",
        )
    errors = (found.ttft_ms, found.itl_ms)
    if any(error_ms is None or error_ms >= WARN_MS for error_ms in errors):
        return warn(
            f"{figure}; {percent(seen.wide_ratio)} of the reads had several tokens",
            "use fewer users in this process (more workers), stop other programs on this machine, and see "
            "the checks of reader and kernel stamps",
        )
    return ok(figure)


_CLOCK_WAS_SET = "cannot tell: the clock was set meanwhile"


def facts(seen: Calibrated | str, asked: int, workers: int = 1) -> CalibrationFacts:
    """What a run keeps of it: the streams are those of one of so many workers."""
    if isinstance(seen, str) or seen.clock_was_set:
        return CalibrationFacts(
            asked=asked, workers=workers, why=seen if isinstance(seen, str) else _CLOCK_WAS_SET
        )
    return CalibrationFacts(
        asked=asked,
        streams=seen.streams,
        workers=workers,
        ttft_n=len(seen.ttft_ms),
        ttft_ms=_most(seen.ttft_ms),
        itl_ms=_most(seen.itl_ms),
        open_ms=_most(seen.open_ms),
        tokens_per_s=None if np.isnan(seen.tokens_per_s) else round(seen.tokens_per_s, 1),
        wide_ratio=round(seen.wide_ratio, 6),
        answers=seen.answers,
        astray=seen.astray,
        why=seen.why,
    )


def _most(errors_ms: Floats) -> float | None:
    """The p99, or the largest of few."""
    if len(errors_ms) >= FEWEST:
        return round(percentile(ordered(errors_ms), 99.0), 6)
    return round(float(errors_ms.max()), 6) if len(errors_ms) else None
