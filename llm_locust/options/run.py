"""Options of a run as a whole: its limits, its length, where its records are."""

from functools import partial

from llm_locust.core.durations import parse_time
from llm_locust.metrics.gates import parse_gates
from llm_locust.metrics.question import parse_window
from llm_locust.metrics.requests.slo import parse_slo
from llm_locust.options.option import Option, OwnSpool
from llm_locust.options.types import parse_size, parse_timeouts, parse_warmup
from llm_locust.scenario import forms


def parse_seed(seed: int) -> int:
    """A whole number from 0 (raises ValueError)."""
    if seed < 0:
        raise ValueError(f"{seed} is negative; give a whole number from 0")
    return seed


def parse_stamps(text: str) -> str:
    """``kernel`` or ``program`` (raises ValueError)."""
    if text in ("packet", "read", "auto"):
        raise ValueError(
            f"{text!r} is no longer needed: a thread reads each packet when it comes. Leave --stamps out, "
            "or give kernel or program"
        )
    if text not in ("kernel", "program"):
        raise ValueError(f"{text!r} is neither kernel nor program")
    return text


def parse_streams(streams: int) -> int:
    """A whole number from 1 (raises ValueError)."""
    if streams < 1:
        raise ValueError(f"{streams} is no number of streams; give a whole number from 1")
    return streams


RUN = (
    Option(
        "--slo",
        'limits per request, for goodput: "ttft=500ms tpot=50ms e2el=10s"',
        parse_slo,
        "LIMITS",
        form=forms.LIMITS,
        ui=True,
        is_load=False,
    ),
    Option(
        "--slo-from",
        "where the limits of ttft, ttfo and e2el begin (default: scheduled in an open loop, else sent)",
        choices=("sent", "scheduled"),
    ),
    Option(
        "--gate",
        'limits for the run, such as "goodput>=0.95 p99_ttft<800ms output_tps>2000"; '
        "a failed one gives exit code 1",
        parse_gates,
        "GATES",
        form=forms.GATES,
        ui=True,
        is_load=False,
    ),
    Option(
        "--warmup",
        'excluded from the measured window, such as 30s (default 0s); "up to 30s" gives way if all requests '
        "begin in it",
        parse_warmup,
        "TIME",
        default="0s",
        form=forms.TIME,
        ui=True,
        is_load=False,
    ),
    Option(
        "--window",
        "part of the run that the report and the gates are of: run, without warm-up and drain; steady, the "
        "longest span in which the load stays on its plateau; 30s-90s, a span after the start (default run)",
        parse_window,
        "WINDOW",
        default="run",
        is_load=False,
    ),
    Option("--out", "run directory (default runs/<time>-<name>)", metavar="DIR", is_load=False),
    Option(
        "--restartable",
        "for a soak, with --out: each start of the master writes a part of one run into that directory, "
        "until the run time of the whole is over; the report joins the parts and names the gaps",
        kind="truth",
        is_load=False,
    ),
    Option(
        "--spool",
        "where a worker keeps batches of records until the master has them, or off "
        "(default: spool/ in the run directory)",
        metavar="DIR",
        action=OwnSpool,
        is_load=False,
    ),
    Option(
        "--seed",
        "reproducible lengths and prompts (default: drawn and recorded)",
        parse_seed,
        "N",
        kind="whole",
        form=forms.WHOLE_FROM_0,
        is_load=False,
    ),
    Option(
        "--swarm-secret-env",
        "environment variable of master and workers that holds the run's secret, 16 characters or more: "
        "processes without it cannot join the run and get none of its options (default: none; "
        "--processes makes its own)",
        metavar="NAME",
        scope=None,  # each process's own: workers show theirs before they are sent a scenario
        record=None,
    ),
    Option(
        "--timeouts",
        'bounds of one request (default "first=60s gap=30s total=600s")',
        parse_timeouts,
        "BOUNDS",
        default="first=60s gap=30s total=600s",
        form=forms.Form("text, or mapping", partial(forms.bounds, parse=parse_timeouts)),
    ),
    Option(
        "--max-answer",
        "maximum size of one answer; a larger one is cut off, and invalid (default 64MiB)",
        parse_size,
        "SIZE",
        default="64MiB",
        is_load=False,
    ),
    Option(
        "--stamps",
        "where arrival times come from. kernel: its receive time of each read, where it has one; program: "
        "the program's own clock after each read (default kernel)",
        parse_stamps,
        "SOURCE",
        default="kernel",
        is_load=False,
    ),
    Option(
        "--calibrate",
        "before the load, stream from a server of known times on this machine, at the streams of one worker, "
        "and show the client's error in the head of the report (takes 5 s)",
        kind="truth",
        is_load=False,
    ),
    Option(
        "--calibrate-streams",
        "the same at this number of streams, for an open loop, a sweep and the web UI",
        parse_streams,
        "N",
        kind="whole",
        is_load=False,
    ),
    Option(
        "--drain",
        "how long to wait for requests in flight when the load ends; 0 cuts them immediately (default 60s)",
        parse_time,
        "TIME",
        default="60s",
        form=forms.TIME,
        ui=True,
    ),
    Option(
        "--flush-timeout",
        "how long to wait for the workers' last records (default 30s)",
        parse_time,
        "TIME",
        default="30s",
        form=forms.TIME,
        is_load=False,
    ),
    Option(
        "--replica-header",
        "response header that names the replica (repeatable; common ones are recognised)",
        metavar="NAME",
        kind="list",
        is_load=False,
    ),
)
