"""Options of what is shown, kept and computed of a run besides its requests."""

from dataclasses import dataclass

from llm_locust.client.http.target import Target
from llm_locust.core.texts import parse_time
from llm_locust.options.load import LoadSettings
from llm_locust.options.option import PROGRESS_MODES, Group, ProgressMode, option, parse_price, read_shape
from llm_locust.options.run import RunSettings
from llm_locust.roofline import Gpu, gpu_named


def parse_note(text: str) -> str:
    """One line of at most 1,000 printable characters (raises ValueError)."""
    if len(text) > 1000 or not text.isprintable():
        raise ValueError(f"{text[:60]!r} is not one line of at most 1,000 printable characters")
    return text


class ReportSettings(Group, frozen=True, kw_only=True):
    """What is shown, kept and computed of a run besides its requests."""

    progress: ProgressMode = option(
        "--progress",
        "what a headless run shows: a live panel (rich), a line every 10 s (plain), or Locust's table "
        "(locust); auto takes the panel on a terminal (default auto)",
        choices=PROGRESS_MODES,
        record=None,
        otherwise="auto",
    )
    rolling_summary_s: float | None = option(
        "--rolling-summary",
        "for a soak: interval between reports of the results so far, in so-far/ of the run directory",
        parse_time,
        "TIME",
        record=None,
    )
    metrics_port: int | None = option(
        "--metrics-port",
        "serve /metrics for Prometheus on its own port",
        metavar="N",
        kind="whole",
        record=None,
    )
    metrics_host: str = option(
        "--metrics-host",
        "address of --metrics-port (default 127.0.0.1)",
        metavar="HOST",
        default="127.0.0.1",
        record=None,
    )
    gpu_type: Gpu | None = option(
        "--gpu-type",
        "type of the serving GPUs, such as h100, for MFU and MBU",
        gpu_named,
        "NAME",
    )
    model_shape: str | None = option(
        "--model-shape",
        "shape of the served model, a YAML file (documentation: roofline.md); with --gpu-type and --gpus",
        check=read_shape,
        metavar="FILE",
        kind="path",
    )
    gpu_hour_cost: float | None = option(
        "--gpu-hour-cost",
        "cost of one GPU per hour, for the cost of requests and tokens",
        parse_price,
        "COST",
        is_load=False,
    )
    gpus: float | None = option(
        "--gpus",
        "number of serving GPUs",
        parse_price,
        "N",
    )
    input_token_price: float | None = option(
        "--input-token-price",
        "an API's price per million input tokens",
        parse_price,
        "COST",
        is_load=False,
    )
    output_token_price: float | None = option(
        "--output-token-price",
        "an API's price per million output tokens",
        parse_price,
        "COST",
        is_load=False,
    )
    upload: str | None = option(
        "--upload",
        "copy the run directory there after the report, and after each --rolling-summary: "
        "s3://bucket/prefix, gs://bucket/prefix or a path; credentials come from the environment",
        metavar="TO",
        is_load=False,
    )
    keep_s: float | None = option(
        "--keep",
        "for a soak: how long records stay in the run directory, such as 6h; older ones are dropped once "
        "--upload has a copy of them that was read back",
        parse_time,
        "TIME",
        is_load=False,
    )
    note: str | None = option(
        "--note",
        "one line about the run, such as what was changed before it; shown in report.html",
        parse_note,
        "TEXT",
        ui=True,
        is_load=False,
    )
    full: bool = option(
        "--full",
        "print the report with all its sections",
        kind="truth",
        record=None,
    )
    print_summary: bool = option(
        "--print-summary",
        "print summary.json as the last line on standard output",
        kind="truth",
        record=None,
    )
    require_valid: bool = option(
        "--require-valid",
        "end with exit code 3 if the client's verdict is 'invalid'",
        kind="truth",
        is_load=False,
    )
    allow_incomplete: bool = option(
        "--allow-incomplete",
        "do not end with exit code 4 if records are missing",
        kind="truth",
        is_load=False,
    )


#: Segments that the kept time is cut into: one is dropped at once.
SEGMENTS = 8

#: A report of less would be one of the longest requests.
LEAST_S = 10.0


@dataclass(frozen=True, slots=True)
class Keep:
    """How long records are kept at least, and the time between two looks at what is due; in seconds."""

    least_s: float
    look_s: float

    @classmethod
    def of(cls, least_s: float, rolling_s: float | None) -> "Keep":
        return cls(least_s, rolling_s or least_s / SEGMENTS)

    @property
    def segment_s(self) -> float:
        """Time that a segment of the records spans."""
        return self.least_s / SEGMENTS

    @property
    def most_s(self) -> float:
        """Longest time that records are kept if every upload succeeds at once."""
        return self.least_s + self.segment_s + self.look_s


def keep_of(report: ReportSettings, run: RunSettings, load: LoadSettings, text: str) -> Keep | None:
    """The ``--keep`` of a run, whose text is ``text``; None without it.

    Raises:
        ValueError: records would be dropped of which there is no copy, or which another option needs.
    """
    least_s, rolling_s = report.keep_s, report.rolling_summary_s
    if least_s is None:
        return None
    text = f"--keep {text}"
    if least_s < LEAST_S:
        raise ValueError(f"{text}: it must be at least {LEAST_S:g}s, and many times the longest request")
    if report.upload is None:
        raise ValueError(f"{text} drops records only once there is a copy of them: add --upload TO")
    if rolling_s is not None and rolling_s > least_s / 2:
        raise ValueError(f"{text}: --rolling-summary must be at most half of it")
    segments = () if load.profile is None else load.profile.segments
    has_steps = len(segments) > 1 and not any(s.slope or s.amplitude for s in segments)
    has_stages = load.sweep is not None or load.search is not None or has_steps
    needs = {
        "--gate": bool(run.gates),
        "--require-valid": report.require_valid,
        "a load of several stages (--sweep, --find, steps:, spike:)": has_stages or load.resume,
    }
    for what, is_given in needs.items():
        if is_given:
            raise ValueError(
                f"{text} beside {what}, which judges all requests of the run: leave one of them out; "
                "`llm-locust merge` with the uploaded copy makes a run that can be judged"
            )
    return Keep.of(least_s, rolling_s)


# --- Options of the web UI beside Locust's own


#: Where the web UI listens unless ``--web-host`` says otherwise: without a login it starts load for anyone.
DEFAULT_WEB_HOST = "127.0.0.1"


class WebSettings(Group, frozen=True, kw_only=True):
    """The web UI beside Locust's own."""

    allow_host: tuple[Target, ...] = option(
        "--allow-host",
        "another host for the web UI's form, besides those of the command line, the scenario and the "
        "locustfile: load and keys go to no other (repeatable)",
        Target.parse,
        "URL",
        kind="list",
        scope=None,
        record=None,
    )
    web_name: tuple[str, ...] = option(
        "--web-name",
        "host name under which the web UI is reached, such as an ingress's, besides addresses and "
        "localhost; other names are then refused (repeatable)",
        metavar="NAME",
        kind="list",
        scope=None,
        record=None,
    )
