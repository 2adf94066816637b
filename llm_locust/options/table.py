"""Locust's command line widened by the load test's own options."""

import argparse
from collections.abc import Callable
from typing import Any

from locust.argument_parser import LocustArgumentParser

from llm_locust.core.durations import parse_time
from llm_locust.metrics.gates import parse_gates
from llm_locust.metrics.requests.slo import parse_slo
from llm_locust.options.access import add_access_arguments
from llm_locust.options.arrivals import parse_count, parse_scale, parse_slice
from llm_locust.options.deployment import add_deployment_arguments
from llm_locust.options.scenario import take_scenario
from llm_locust.options.stop_rules import parse_stop_rules
from llm_locust.options.types import (
    PROGRESS_MODES,
    Append,
    checked,
    parse_price,
    parse_size,
    parse_timeouts,
    read_shape,
)
from llm_locust.options.web import add_web_arguments, listen_on_loopback
from llm_locust.roofline.gpus import gpu_named
from llm_locust.workload.arrivals import parse_arrival, parse_rate
from llm_locust.workload.body import parse_body
from llm_locust.workload.lengths.times import DEFAULT_DRAIN
from llm_locust.workload.lengths.tokens import parse_lengths
from llm_locust.workload.ordering import ORDERS
from llm_locust.workload.text.shared_prefix import parse_shared_prefix

ENV_PREFIX = "LLM_LOCUST_"

#: What a run costs, for the report.
_PRICES = (
    ("--gpu-hour-cost", "COST", "what one GPU costs an hour, for the cost of requests and tokens"),
    ("--gpus", "N", "how many GPUs serve"),
    ("--input-token-price", "COST", "of an API, for a million input tokens"),
    ("--output-token-price", "COST", "of an API, for a million output tokens"),
)

#: Where a process's options have the ``--spool`` of its own command line.
OWN_SPOOL = "llm_own_spool"


class _OwnSpool(argparse.Action):
    """Keeps the value under a second name, which the master's options do not replace on a worker."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        setattr(namespace, self.dest, values)
        setattr(namespace, OWN_SPOOL, values)


def add_arguments(parser: LocustArgumentParser) -> None:
    """Add the options; each can also be given as an environment variable ``LLM_LOCUST_<NAME>``, and in
    the file of ``--scenario``."""
    _add_options(parser)
    listen_on_loopback(parser)
    take_scenario(parser)


def _add_options(parser: LocustArgumentParser) -> None:
    group = parser.add_argument_group("LLM load", "What is sent to the model, and what is asked of it.")

    def add(flag: str, *, ui: bool = False, **settings: Any) -> None:
        name = flag.removeprefix("--").replace("-", "_").upper()
        action = group.add_argument(flag, env_var=ENV_PREFIX + name, **settings)
        # A group's add_argument does not know these attributes, which Locust's own reads of every option.
        action.include_in_web_ui = ui
        action.is_secret = False
        action.is_required = False
        action.is_multiple = False

    add(
        "--scenario",
        metavar="FILE",
        help="YAML file with all of these options and more, such as classes of requests; what the command "
        "line or the environment says wins",
    )
    add("--model", ui=True, help="model name; default: the only one that the server lists")
    add(
        "--input-tokens",
        ui=True,
        type=checked(parse_lengths),
        metavar="D",
        help="length of synthetic prompts in tokens: 512, uniform:100,1000, normal:512,64, "
        "lognormal:512,1.2, file:lengths.csv (default 512)",
    )
    add(
        "--output-tokens",
        ui=True,
        type=checked(parse_lengths),
        metavar="D",
        help="max_tokens of the answers, a distribution as for --input-tokens (default 128; "
        "with --dataset what its lines say)",
    )
    add(
        "--dataset",
        ui=True,
        metavar="FILE",
        help="prompts instead of synthetic ones: JSON Lines of messages, ShareGPT's JSON, a CSV with a "
        "column named prompt, plain text with one prompt a line",
    )
    add("--dataset-order", choices=ORDERS, help="of the dataset's lines (default sequential)")
    add(
        "--tokenizer",
        metavar="PATH",
        help="Hugging Face folder or tokenizer.json: prompts then have exactly the asked lengths, and "
        "answers whose usage the server does not tell are counted by it",
    )
    add(
        "--shared-prefix",
        ui=True,
        type=checked(parse_shared_prefix),
        metavar="P",
        help="beginnings that many prompts share: "
        '"groups=10 tokens=1000 choice=uniform|zipf run_unique=yes|no"',
    )
    add(
        "--unique-head",
        choices=("on", "off"),
        help="on: every prompt begins with words of its own, lest a prefix cache knows it (default on)",
    )
    add(
        "--calibrate",
        choices=("auto", "on", "off"),
        help="correct the lengths of synthetic prompts by the server's own first counts, where no tokenizer "
        "is given; texts then depend on when answers came (default auto: unless --seed is given)",
    )
    add(
        "--body",
        type=checked(parse_body),
        metavar="JSON",
        help='fields added to every request body, such as \'{"temperature": 0, "ignore_eos": true}\'',
    )
    add(
        "--slo",
        ui=True,
        type=checked(parse_slo),
        metavar="LIMITS",
        help='limits per request, for goodput: "ttft=500ms tpot=50ms e2el=10s"',
    )
    add(
        "--slo-from",
        choices=("sent", "scheduled"),
        help="where the limits of ttft, ttfo and e2el begin (default: scheduled in an open loop, else sent)",
    )
    add(
        "--gate",
        ui=True,
        type=checked(parse_gates),
        metavar="GATES",
        help='limits for the run, such as "goodput>=0.95 p99_ttft<800ms output_tps>2000"; '
        "a broken one gives exit code 1",
    )
    add(
        "--warmup",
        ui=True,
        type=checked(parse_time),
        default="0s",
        metavar="TIME",
        help="left out of the measured window, such as 30s (default 0s)",
    )
    add("--out", metavar="DIR", help="run directory (default runs/<time>-<name>)")
    add(
        "--spool",
        action=_OwnSpool,
        metavar="DIR",
        help="where a worker keeps batches of records until the master has them, or off "
        "(default: spool/ in the run directory)",
    )
    add(
        "--seed", type=int, metavar="N", help="reproducible lengths and prompts (default: drawn and recorded)"
    )
    add(
        "--swarm-secret-env",
        metavar="NAME",
        help="environment variable of master and workers that holds the run's secret, 16 characters or more: "
        "who does not know it takes no part in the run, and is sent none of its options (default: none; "
        "--processes makes its own)",
    )
    add(
        "--timeouts",
        type=checked(parse_timeouts),
        default="first=60s gap=30s total=600s",
        metavar="BOUNDS",
        help='bounds of one request (default "first=60s gap=30s total=600s")',
    )
    add(
        "--max-answer",
        type=checked(parse_size),
        default="64MiB",
        metavar="SIZE",
        help="most bytes of one answer; a larger one is broken off, and invalid (default 64MiB)",
    )
    add(
        "--drain",
        ui=True,
        type=checked(parse_time),
        default=DEFAULT_DRAIN,
        metavar="TIME",
        help="how long requests under way are waited for once the load has ended; 0 cuts them at once "
        "(default 60s)",
    )
    add(
        "--flush-timeout",
        type=checked(parse_time),
        default="30s",
        metavar="TIME",
        help="how long the workers' last records are waited for (default 30s)",
    )
    add(
        "--replica-header",
        action=Append,
        default=[],
        metavar="NAME",
        help="response header that names the replica (repeatable; common ones are known)",
    )
    add_access_arguments(add)
    add(
        "--progress",
        choices=PROGRESS_MODES,
        help="of a headless run: a live panel (rich), a line every 10 s (plain), or Locust's table (locust); "
        "auto takes the panel on a terminal (default auto)",
    )
    add(
        "--rolling-summary",
        type=checked(parse_time),
        metavar="TIME",
        help="in a soak: every so often a report of what has come so far, in so-far/ of the run directory",
    )
    add("--metrics-port", type=int, metavar="N", help="serve /metrics for Prometheus on a port of its own")
    add(
        "--metrics-host",
        default="127.0.0.1",
        metavar="HOST",
        help="address of --metrics-port (default 127.0.0.1)",
    )
    add(
        "--gpu-type",
        type=checked(gpu_named),
        metavar="NAME",
        help="the GPU that serves, as h100: for MFU and MBU",
    )
    add(
        "--model-shape",
        type=checked(read_shape),
        metavar="FILE",
        help="the model that is served, as in examples/models; with --gpu-type and --gpus",
    )
    for flag, metavar, meaning in _PRICES:
        add(flag, type=checked(parse_price), metavar=metavar, help=meaning)
    add(
        "--upload",
        metavar="TO",
        help="copy the run directory there after the report, and after each --rolling-summary: "
        "s3://bucket/prefix, gs://bucket/prefix or a path; credentials come from the environment",
    )
    add("--print-summary", action="store_true", help="summary.json as the last line on standard output")
    add("--require-valid", action="store_true", help="exit code 3 when the client's verdict is 'invalid'")
    add("--allow-incomplete", action="store_true", help="no exit code 4 when records are missing")
    _add_load_arguments(add)
    add_deployment_arguments(add)
    add_web_arguments(add)


def _add_load_arguments(add: Callable[..., None]) -> None:
    """When requests are sent, and when no more are."""
    add(
        "--arrival",
        ui=True,
        type=checked(parse_arrival),
        metavar="A",
        help="open loop: constant, poisson, gamma:CV or trace:FILE (default poisson; "
        "needs a user class of OpenLoopUser)",
    )
    add(
        "--request-rate",
        ui=True,
        type=checked(parse_rate),
        metavar="R",
        help="open loop: requests per second of all workers together: 10, ramp:10..100,60s, "
        "steps:10@60s,50@30s, sine:MEAN,AMPLITUDE,PERIOD or spike:BASE,PEAK,AT,FOR; of a trace its mean "
        "(default: the number of users)",
    )
    add(
        "--max-in-flight",
        ui=True,
        type=checked(parse_count),
        metavar="N",
        help="open loop: no more than N requests of all workers at once; the others wait and are counted",
    )
    add(
        "--num-requests",
        ui=True,
        type=checked(parse_count),
        metavar="N",
        help="end the run when exactly N requests were sent by all workers together",
    )
    add(
        "--stop-when",
        ui=True,
        type=checked(parse_stop_rules),
        metavar="RULES",
        help='end the run by rule: "error_rate>20%% over 30s", oversaturation, or both with a comma between',
    )
    add(
        "--trace-scale",
        type=checked(parse_scale),
        metavar="X",
        help="stretch a trace's times: 2 is twice as slow (default 1)",
    )
    add(
        "--trace-slice",
        type=checked(parse_slice),
        metavar="FROM-TO",
        help="replay a part of a trace, counted from its first request: 10m-20m, or 10m-",
    )


def options_help() -> str:
    """The options as a person reads them. (Locust prints its help before it loads a locustfile.)"""
    parser = LocustArgumentParser(prog="locust -f FILE", usage="%(prog)s [options]", add_help=False)
    _add_options(parser)
    return str(parser.format_help())
