"""Options of what is shown, kept and computed of a run besides its requests."""

from llm_locust.core.durations import parse_time
from llm_locust.options.option import Option
from llm_locust.options.types import PROGRESS_MODES, parse_price, read_shape
from llm_locust.roofline.gpus import gpu_named
from llm_locust.scenario import forms


def parse_note(text: str) -> str:
    """One line of at most 1,000 printable characters (raises ValueError)."""
    if len(text) > 1000 or not text.isprintable():
        raise ValueError(f"{text[:60]!r} is not one line of at most 1,000 printable characters")
    return text


#: What a run costs.
PRICES = tuple(
    Option(flag, meaning, parse_price, metavar, form=forms.NUMBER)
    for flag, metavar, meaning in (
        ("--gpu-hour-cost", "COST", "cost of one GPU per hour, for the cost of requests and tokens"),
        ("--gpus", "N", "number of serving GPUs"),
        ("--input-token-price", "COST", "an API's price per million input tokens"),
        ("--output-token-price", "COST", "an API's price per million output tokens"),
    )
)

REPORT = (
    Option(
        "--progress",
        "of a headless run: a live panel (rich), a line every 10 s (plain), or Locust's table (locust); "
        "auto takes the panel on a terminal (default auto)",
        choices=PROGRESS_MODES,
        record=None,
    ),
    Option(
        "--rolling-summary",
        "for a soak: interval between reports of the results so far, in so-far/ of the run directory",
        parse_time,
        "TIME",
        form=forms.TIME,
        record=None,
    ),
    Option(
        "--metrics-port",
        "serve /metrics for Prometheus on its own port",
        metavar="N",
        kind="whole",
        record=None,
    ),
    Option(
        "--metrics-host",
        "address of --metrics-port (default 127.0.0.1)",
        metavar="HOST",
        default="127.0.0.1",
        record=None,
    ),
    Option("--gpu-type", "type of the serving GPUs, such as h100, for MFU and MBU", gpu_named, "NAME"),
    Option(
        "--model-shape",
        "the model being served, as in examples/models; with --gpu-type and --gpus",
        read_shape,
        "FILE",
        kind="path",
    ),
    *PRICES,
    Option(
        "--upload",
        "copy the run directory there after the report, and after each --rolling-summary: "
        "s3://bucket/prefix, gs://bucket/prefix or a path; credentials come from the environment",
        metavar="TO",
        is_load=False,
    ),
    Option(
        "--note",
        "one line about the run, such as what was changed before it; shown in report.html",
        parse_note,
        "TEXT",
        ui=True,
        is_load=False,
    ),
    Option("--print-summary", "summary.json as the last line on standard output", kind="truth", record=None),
    Option(
        "--require-valid", "exit code 3 when the client's verdict is 'invalid'", kind="truth", is_load=False
    ),
    Option("--allow-incomplete", "no exit code 4 when records are missing", kind="truth", is_load=False),
)
