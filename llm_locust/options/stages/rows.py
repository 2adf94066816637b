"""Options of a run that measures several loads: a row each."""

from typing import Any

from llm_locust.core.durations import parse_time
from llm_locust.core.manifest import MOST_STAGES
from llm_locust.metrics.curves.objective import parse_objective
from llm_locust.metrics.curves.searched import parse_first_load, parse_share
from llm_locust.metrics.stages.until import parse_until
from llm_locust.options.option import Option
from llm_locust.options.types import parse_count
from llm_locust.scenario import forms
from llm_locust.workload.arrivals import parse_sweep


def parse_stage_time(text: str) -> float:
    """A duration above 0 (raises ValueError)."""
    seconds = parse_time(text)
    if seconds <= 0:
        raise ValueError(f"{text!r}: a stage must be measured for longer than 0 s")
    return seconds


def parse_most_stages(text: Any) -> int:
    """A number of stages (raises ValueError)."""
    found = parse_count(text)
    if found > MOST_STAGES:
        raise ValueError(f"{found} stages are too many, at most {MOST_STAGES} are allowed")
    return found


STAGES = (
    Option(
        "--sweep",
        "measure several loads one after the other in one run: users=1,2,4,8, rate=2,4,8, "
        "rate=linear:1..10,10 or users=geometric:1..256,9; also at several lengths (input:output tokens), "
        '"users=1,4 lengths=128:32,4096:64", or lengths= alone at the load of the run; or with shared '
        'prefixes, "users=4 prefix-share=0%,50%,90%", which empties and fills the prefix caches before each; '
        "--warmup is left out of each, and requests in flight end (--drain) before the next",
        parse_sweep,
        "LOADS",
        ui=True,
    ),
    Option(
        "--stage-time",
        "how long each load of --sweep and --find is measured (default 60s)",
        parse_stage_time,
        "TIME",
        default="60s",
        ui=True,
    ),
    Option(
        "--until",
        "end the measured part of a load as soon as the 95 % interval of a figure is narrow enough, at the "
        'latest after --stage-time: "p99_ttft±5%", also +-5%; looked at after each quarter of the time',
        parse_until,
        "FIGURE",
        ui=True,
    ),
    Option(
        "--repeat",
        "measure all loads of --sweep N times in turn, and show the intervals over the repeats (default 1)",
        parse_count,
        "N",
        form=forms.WHOLE,
        ui=True,
    ),
    Option(
        "--resume",
        "go on with the sweep or search in --out that was cut short: what it has finished is kept, the stage "
        "that was under way is repeated, and one report joins all; the settings must be the same. Without a "
        "run there it begins one",
        kind="truth",
        is_load=False,
    ),
    Option(
        "--find",
        'search the highest load under which limits hold, each load as one of --sweep: "max rate under '
        'goodput>=95%" or "max concurrency under p99_ttft<500ms p99_tpot<50ms"; or "max-goodput", '
        '"max-goodput over concurrency": the load with the most good requests/s; --gate "edge>=30" is on the '
        "lower end of its interval",
        parse_objective,
        "OBJECTIVE",
        ui=True,
    ),
    Option(
        "--first-load",
        "load at which --find begins, in requests/s or users; it is doubled until a limit breaks (default 4)",
        parse_first_load,
        "N",
        ui=True,
    ),
    Option(
        "--precision",
        "--find ends when half the 95 % interval is this share of its answer (default 5%)",
        parse_share,
        "SHARE",
        ui=True,
    ),
    Option(
        "--max-stages",
        "most loads that --find measures (default 12)",
        parse_most_stages,
        "N",
        form=forms.WHOLE,
        ui=True,
    ),
)
