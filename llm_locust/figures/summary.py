"""``summary.json`` as a whole: its type, how it is written and read, and its JSON schema."""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType, NoneType, UnionType
from typing import Annotated, Any, get_args, get_type_hints

import msgspec

from llm_locust.figures import (
    agents as agents_,
    bottleneck,
    client,
    compat,
    completeness,
    cost,
    drift,
    energy,
    errors,
    fairness,
    images as images_,
    inputs as inputs_,
    interventions,
    live_check,
    other_requests as other_requests_,
    quality,
    reliability,
    roofline,
    run_facts,
    sessions,
    steadiness,
    tokens,
    user_time as user_time_,
)
from llm_locust.figures.agents import Agents
from llm_locust.figures.arms import ArmSummary
from llm_locust.figures.autoscaling import Autoscaling, show as show_autoscaling
from llm_locust.figures.bottleneck import Bottleneck
from llm_locust.figures.client import ClientFacts, LittlesLaw
from llm_locust.figures.compat import Compat
from llm_locust.figures.completeness import Completeness
from llm_locust.figures.cost import Cost
from llm_locust.figures.counts import RequestCounts
from llm_locust.figures.curve import CurveFacts, CurveOfLengths
from llm_locust.figures.drift import Drift
from llm_locust.figures.energy import Energy
from llm_locust.figures.errors import ErrorKind
from llm_locust.figures.fairness import Fairness
from llm_locust.figures.figure import Figure
from llm_locust.figures.gates import GateOutcome
from llm_locust.figures.goodput import Goodput
from llm_locust.figures.images import Images
from llm_locust.figures.inputs import Inputs
from llm_locust.figures.interventions import Interventions
from llm_locust.figures.live_check import LiveCheck
from llm_locust.figures.other_requests import OtherRequestsPart
from llm_locust.figures.parts import BreakdownPart, RequestPart
from llm_locust.figures.parts_of_run import Parts
from llm_locust.figures.quality import Quality
from llm_locust.figures.reliability import Reliability
from llm_locust.figures.roofline import Roofline
from llm_locust.figures.routing import ReplicaFigures
from llm_locust.figures.run_facts import AnalysisFacts, RunFacts, WindowFacts
from llm_locust.figures.search import SearchFacts
from llm_locust.figures.servers import Servers
from llm_locust.figures.sessions import Sessions
from llm_locust.figures.since_start import DroppedPart, SinceStart
from llm_locust.figures.spike import SpikeFacts
from llm_locust.figures.stage_checks import PrefixWorth
from llm_locust.figures.stages import OutsideStages, Repeats, Stage
from llm_locust.figures.steadiness import Steadiness
from llm_locust.figures.throughput import Throughput
from llm_locust.figures.tokens import Tokens
from llm_locust.figures.user_time import UserTime
from llm_locust.metrics.structs import PERCENTILE, LatencyKeys, LatencyTable, SummaryPart, key

#: 2: cut, unsent and stuck requests are in goodput and in the latencies, and rates of the good are of answers
#: that ended in the window. Keys of 1 that kept their names have other values in such runs.
SUMMARY_SCHEMA = 2


class SummaryError(ValueError):
    """A file that is no ``summary.json`` of this version."""


class Summary(SummaryPart, frozen=True):
    """Every number of a run."""

    schema: Annotated[
        int,
        key(
            "version of this layout; it grows by one when a key changes its meaning or goes. In 1 goodput "
            "and latencies were without cut, unsent and stuck requests, and rates of good requests were of "
            "those scheduled in the window: do not set its figures beside those of 2. `llm-locust compare` "
            "and `report` read the records, and give all runs the present meaning"
        ),
    ]
    run: Annotated[RunFacts, Figure(run_facts.run_of)]
    window: Annotated[WindowFacts, Figure(run_facts.window_of)]
    latency_ms: dict[str, LatencyTable]
    latency_ms_adjusted: dict[str, LatencyTable]
    throughput: Throughput
    requests: RequestCounts
    goodput: Goodput
    by_name: dict[str, RequestPart]
    by_class: dict[str, RequestPart]
    sessions: Annotated[Sessions | None, Figure(sessions.compute, sessions.show)]
    tokens: Annotated[Tokens, Figure(tokens.compute, tokens.show)]
    client: Annotated[ClientFacts, Figure(client.compute, client.show)]
    littles_law: Annotated[LittlesLaw, Figure(client.law_of)]
    completeness: Annotated[Completeness, Figure(completeness.compute)]
    steadiness: Annotated[Steadiness, Figure(steadiness.compute, steadiness.show)]
    drift: Annotated[Drift, Figure(drift.compute, drift.show)]
    reliability: Annotated[Reliability, Figure(reliability.compute, reliability.show)]
    replicas: Annotated[list[ReplicaFigures], Figure(fairness.replicas_of, fairness.show_replicas)]
    fairness: Annotated[Fairness, Figure(fairness.fairness_of, fairness.show)]
    bottleneck: Annotated[Bottleneck | str, Figure(bottleneck.compute, bottleneck.show)]
    quality: Annotated[Quality, Figure(quality.compute, quality.sections)]
    errors: Annotated[list[ErrorKind], Figure(errors.compute, errors.show)]
    compat: Annotated[Compat, Figure(compat.compute)]
    interventions: Annotated[Interventions, Figure(interventions.compute, interventions.show)]
    gates: list[GateOutcome]
    cost: Annotated[Cost | None, Figure(cost.compute, cost.show)]
    server: Servers | None
    energy: Annotated[Energy | str | None, Figure(energy.compute, energy.show)]
    roofline: Annotated[Roofline | str | None, Figure(roofline.compute, roofline.show)]
    live_check: Annotated[LiveCheck | None, Figure(live_check.compute)]
    analysis: AnalysisFacts | None = None
    by: dict[str, BreakdownPart] | None = None
    stages: list[Stage] | None = None
    repeats: list[Repeats] | None = None
    outside_stages: OutsideStages | None = None
    search: SearchFacts | None = None
    curve: CurveFacts | None = None
    curves: list[CurveOfLengths] | None = None
    prefix_cache: PrefixWorth | None = None
    spike: SpikeFacts | None = None
    parts: Parts | None = None
    since_start: SinceStart | None = None
    dropped: DroppedPart | None = None
    arms: list[ArmSummary] | None = None

    @property
    def is_empty(self) -> bool:
        """Whether no request is in the window: then nothing was measured, and no figure is one."""
        return not (self.requests.scheduled or self.requests.stuck or self.stages or self.arms)

    @property
    def is_of_parts(self) -> bool:
        """Whether figures of the whole run are of no load or of no server: those of its parts are shown."""
        return self.is_sweep or len(self.arms or ()) > 1

    agents: Annotated[Agents | None, Figure(agents_.compute, agents_.show)] = None
    autoscaling: Annotated[Autoscaling | None, Figure(fairness.autoscaling_of, show_autoscaling)] = None
    inputs: Annotated[Inputs | None, Figure(inputs_.compute, inputs_.show)] = None
    images: Annotated[Images | None, Figure(images_.compute, images_.show)] = None
    user_time: Annotated[UserTime | None, Figure(user_time_.compute)] = None
    other_requests: Annotated[
        list[OtherRequestsPart] | None, Figure(other_requests_.compute, other_requests_.show)
    ] = None

    def curve_of(self, lengths: str) -> CurveFacts | None:
        """The curve at a pair of lengths, as ``128:32``; ``""``: that of a sweep that sets none."""
        found = {each.lengths: each.curve for each in self.curves or ()}
        return found.get(lengths) if lengths else self.curve

    @property
    def is_sweep(self) -> bool:
        """Whether figures of the whole run are of no load: those of its stages are shown instead."""
        return self.run.is_sweep is True

    @property
    def is_without_output(self) -> bool:
        """Whether every answer was a list of results: no token was generated."""
        return self.inputs is not None and not self.tokens.output.n

    @property
    def is_open_loop(self) -> bool:
        """Whether requests had a schedule of their own: only then is a delay against it judged."""
        return self.client.schedule_delay_ms_p99 is not None


_TYPES = get_type_hints(Summary)

#: Keys that only some runs or reports have, by their default: no key in the file, None here.
ASKED = tuple(field.name for field in msgspec.structs.fields(Summary) if not field.required)

#: The others of which a run may have nothing: ``{}`` in the file, None here.
OPTIONAL = tuple(name for name, kind in _TYPES.items() if name not in ASKED and NoneType in get_args(kind))

#: Those that may say why there is nothing: ``{"missing": why}`` in the file, a str here.
EXPLAINED = tuple(
    name for name, kind in _TYPES.items() if isinstance(kind, UnionType) and str in get_args(kind)
)

# msgspec learns a type at its first use, and the process crashes if two threads do so at once: so, at import.
# A master with a web page reads the summary in a thread for the page, and in another for the report.
msgspec.json.Decoder(Summary)
msgspec.json.Decoder(LatencyKeys)


def _figures() -> Iterator[tuple[str, Figure]]:
    for name, kind in get_type_hints(Summary, include_extras=True).items():
        for each in getattr(kind, "__metadata__", ()):
            if isinstance(each, Figure):
                yield name, each


#: The figures by their keys, in the order of the file.
FIGURES: Mapping[str, Figure] = MappingProxyType(dict(_figures()))


def typed(summary: Mapping[str, Any]) -> Summary:
    """The summary of the content of ``summary.json``.

    Raises:
        SummaryError: a key is missing, unknown or of another type; one line says which.
    """
    found = dict(summary)
    for name in OPTIONAL:
        if found.get(name) == {}:
            found[name] = None
    for name in EXPLAINED:
        if found.get(name) and found[name].keys() == {"missing"}:
            found[name] = found[name]["missing"]
    try:
        return msgspec.convert(found, Summary, dec_hook=_read)
    except msgspec.ValidationError as e:
        raise SummaryError(str(e)) from None


def typed_stages(found: Sequence[Any]) -> list[Stage]:
    """The ``stages`` of a summary, without the rest of it (raises SummaryError as :func:`typed`)."""
    try:
        return msgspec.convert(found, list[Stage], dec_hook=_read)
    except msgspec.ValidationError as e:
        raise SummaryError(str(e)) from None


def read_summary(content: bytes) -> Summary:
    """The summary of a file's bytes.

    Raises:
        SummaryError: it is no JSON, of another version, or damaged; one line says what is wrong.
    """
    try:
        found = msgspec.json.decode(content)
    except msgspec.DecodeError as e:
        raise SummaryError(f"it is no JSON: {e}") from None
    if not isinstance(found, dict):
        raise SummaryError("it is no JSON object")
    if found.get("schema") != SUMMARY_SCHEMA:
        raise SummaryError(
            f"its schema is {found.get('schema')!r:.40}, and {SUMMARY_SCHEMA} is needed: "
            "make it again with llm-locust report"
        )
    return typed(found)


def as_json(summary: Summary) -> dict[str, Any]:
    """The content of ``summary.json``."""
    found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(summary))
    for name in OPTIONAL:
        if found[name] is None:
            found[name] = {}
    for name in EXPLAINED:
        if isinstance(found[name], str):
            found[name] = {"missing": found[name]}
    return {name: value for name, value in found.items() if value is not None or name not in ASKED}


def json_schema() -> dict[str, Any]:
    """The JSON schema of ``summary.json``."""

    def hook(kind: type) -> dict[str, Any]:
        return {"$ref": f"#/$defs/{kind.__name__}"}

    (top, _), parts = msgspec.json.schema_components((Summary, LatencyKeys), schema_hook=hook)
    others = {"patternProperties": {f"^{PERCENTILE.pattern}$": {"type": ["number", "null"]}}}
    parts["LatencyTable"] = parts.pop("LatencyKeys") | {"title": "LatencyTable"} | others
    fields = parts["Summary"]["properties"]
    nothing, why = {"type": "object", "maxProperties": 0}, {"type": "string"}
    explained = {"type": "object", "properties": {"missing": why}, "required": ["missing"]}
    for name in OPTIONAL:
        kinds = [kind for kind in fields[name]["anyOf"] if "$ref" in kind]
        fields[name] = {"anyOf": [*kinds, *([explained] if name in EXPLAINED else []), nothing]}
    for name in ASKED:
        (fields[name],) = (kind for kind in fields[name]["anyOf"] if kind.get("type") != "null")
    fields["schema"] |= {"const": SUMMARY_SCHEMA}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **top, "$defs": parts}


def _read(kind: type, found: Any) -> Any:
    if kind is LatencyTable and isinstance(found, dict):
        return LatencyTable(found)
    raise msgspec.ValidationError(f"Expected `object`, got `{type(found).__name__}`")
