"""``summary.json`` as a whole: its type, how it is written and read, and its JSON schema."""

from collections.abc import Iterator, Mapping
from types import MappingProxyType, NoneType, UnionType
from typing import Annotated, Any, get_args, get_type_hints

import msgspec

from llm_locust.figures import (
    agents as agents_,
    arms as arms_,
    autoscaling as autoscaling_,
    bottleneck as bottleneck_,
    client as client_,
    compat as compat_,
    completeness as completeness_,
    cost as cost_,
    counts,
    curve as curve_,
    fairness as fairness_,
    gate_rules,
    gates as gates_,
    goodput as goodput_,
    inputs as inputs_,
    interventions as interventions_,
    latency,
    littles_law as littles_law_,
    parts as parts_,
    pools,
    prefix_cache as prefix_cache_,
    quality as quality_,
    reliability as reliability_,
    roofline as roofline_,
    run_facts,
    search as search_,
    servers,
    sessions as sessions_,
    spike as spike_,
    stages as stages_,
    steadiness as steadiness_,
    tokens as tokens_,
    user_time as user_time_,
)
from llm_locust.figures.figure import Figure
from llm_locust.figures.parts import BreakdownPart, RequestPart
from llm_locust.figures.routing import ReplicaFigures
from llm_locust.metrics.limits import MOST_FAILED
from llm_locust.metrics.requests.rates import Throughput
from llm_locust.metrics.structs import PERCENTILE, LatencyKeys, LatencyTable, SummaryPart, key

#: 2: cut, unsent and stuck requests are in goodput and in the latencies, and rates of the good are of answers
#: that ended in the window. Keys of 1 that kept their names have other values in such runs.
SUMMARY_SCHEMA = 2


class SummaryError(ValueError):
    """A file that is no ``summary.json`` of this version."""


class Summary(SummaryPart, frozen=True, omit_defaults=True):
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
    run: Annotated[run_facts.RunFacts, Figure(run_facts.run_of)]
    window: Annotated[run_facts.WindowFacts, Figure(run_facts.window_of)]
    latency_ms: Annotated[dict[str, LatencyTable], Figure(latency.compute, latency.show, latency.intervals)]
    latency_ms_adjusted: Annotated[dict[str, LatencyTable], Figure(latency.adjusted)]
    throughput: Annotated[Throughput, Figure(goodput_.throughput_of, goodput_.show_throughput)]
    requests: Annotated[counts.RequestCounts, Figure(counts.compute, counts.show, counts.left_open)]
    goodput: Annotated[goodput_.Goodput, Figure(goodput_.compute, goodput_.show)]
    by_name: Annotated[dict[str, RequestPart], Figure(parts_.of_names, parts_.by_name)]
    by_class: Annotated[dict[str, RequestPart], Figure(parts_.of_classes, parts_.by_class)]
    sessions: Annotated[
        sessions_.Sessions | None, Figure(sessions_.compute, sessions_.show, sessions_.by_turn)
    ]
    tokens: Annotated[tokens_.Tokens, Figure(tokens_.compute, tokens_.show)]
    client: Annotated[client_.ClientFacts, Figure(client_.compute, client_.show)]
    littles_law: Annotated[littles_law_.LittlesLaw, Figure(littles_law_.compute)]
    completeness: Annotated[
        completeness_.Completeness, Figure(completeness_.compute, completeness_.show, completeness_.nodes)
    ]
    steadiness: Annotated[steadiness_.Steadiness, Figure(steadiness_.compute, steadiness_.show)]
    drift: Annotated[steadiness_.Drift, Figure(steadiness_.compute_drift, steadiness_.show_drift)]
    reliability: Annotated[reliability_.Reliability, Figure(reliability_.compute, reliability_.show)]
    replicas: Annotated[list[ReplicaFigures], Figure(fairness_.replicas_of, fairness_.show_replicas)]
    fairness: Annotated[fairness_.Fairness, Figure(fairness_.fairness_of, fairness_.show)]
    bottleneck: Annotated[bottleneck_.Bottleneck | str, Figure(bottleneck_.compute, bottleneck_.show)]
    quality: Annotated[quality_.Quality, Figure(quality_.compute, quality_.sections)]
    errors: Annotated[
        list[reliability_.ErrorKind], Figure(reliability_.compute_errors, reliability_.show_errors)
    ]
    compat: Annotated[compat_.Compat, Figure(compat_.compute)]
    interventions: Annotated[
        interventions_.Interventions, Figure(interventions_.compute, interventions_.show)
    ]
    gates: Annotated[list[gate_rules.GateOutcome], Figure(None, gates_.show)]
    cost: Annotated[cost_.Cost | None, Figure(cost_.compute, cost_.show)]
    server: Annotated[servers.Servers | None, Figure(servers.compute, pools.show, servers.show)]
    energy: Annotated[cost_.Energy | str | None, Figure(cost_.compute_energy, cost_.show_energy)]
    roofline: Annotated[roofline_.Roofline | str | None, Figure(roofline_.compute, roofline_.show)]
    live_check: Annotated[latency.LiveCheck | None, Figure(latency.compute_live_check)]
    analysis: run_facts.AnalysisFacts | None = None
    by: Annotated[dict[str, BreakdownPart] | None, Figure(None, parts_.breakdowns)] = None
    stages: Annotated[list[stages_.Stage] | None, Figure(stages_.compute, stages_.show)] = None
    repeats: Annotated[list[stages_.Repeats] | None, Figure(stages_.repeats_of, stages_.show_repeats)] = None
    outside_stages: Annotated[stages_.OutsideStages | None, Figure(stages_.outside)] = None
    search: Annotated[search_.SearchFacts | None, Figure(search_.compute, search_.show)] = None
    curve: Annotated[curve_.CurveFacts | None, Figure(curve_.compute, curve_.show)] = None
    curves: Annotated[list[curve_.CurveOfLengths] | None, Figure(curve_.of_lengths)] = None
    prefix_cache: Annotated[
        prefix_cache_.PrefixWorth | None, Figure(curve_.prefix_worth, curve_.show_prefix_hits)
    ] = None
    spike: Annotated[spike_.SpikeFacts | None, Figure(spike_.compute, spike_.show)] = None
    parts: Annotated[run_facts.Parts | None, Figure(None, run_facts.show_parts)] = None
    since_start: Annotated[run_facts.SinceStart | None, Figure(None, run_facts.show_since_start)] = None
    dropped: run_facts.DroppedPart | None = None
    arms: Annotated[list[arms_.ArmSummary] | None, Figure(None, arms_.show)] = None
    agents: Annotated[
        agents_.Agents | None, Figure(agents_.compute, agents_.show, agents_.agents_by_load)
    ] = None
    autoscaling: Annotated[
        autoscaling_.Autoscaling | None, Figure(fairness_.autoscaling_of, autoscaling_.show)
    ] = None
    inputs: Annotated[inputs_.Inputs | None, Figure(inputs_.compute, inputs_.show)] = None
    images: Annotated[inputs_.Images | None, Figure(inputs_.compute_images, inputs_.show_images)] = None
    user_time: Annotated[user_time_.UserTime | None, Figure(user_time_.compute)] = None
    other_requests: Annotated[
        list[counts.OtherRequestsPart] | None, Figure(counts.compute_others, counts.show_others)
    ] = None

    @property
    def is_empty(self) -> bool:
        """Whether no request is in the window: then nothing was measured, and no figure is one."""
        return not (self.requests.scheduled or self.requests.stuck or self.stages or self.arms)

    @property
    def is_of_parts(self) -> bool:
        """Whether figures of the whole run are of no load or of no server: those of its parts are shown."""
        return self.is_sweep or len(self.arms or ()) > 1

    def curve_of(self, lengths: str) -> curve_.CurveFacts | None:
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
    def has_hung(self) -> bool:
        """Whether users hung, or more than a hundredth of an open loop's requests."""
        if self.user_time is not None:
            return bool(self.user_time.hung.n)
        many = self.reliability.hung > MOST_FAILED * self.requests.scheduled
        return self.is_open_loop and not self.is_sweep and many

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


def read_summary(content: bytes) -> Summary:
    """The summary of a file's bytes.

    Raises:
        SummaryError: it is no JSON, of another version, or damaged: a key is missing, unknown or of another
            type; one line says what is wrong.
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
    return from_json(found)


def from_json(content: Mapping[str, Any]) -> Summary:
    """The summary of the content of ``summary.json`` (raises SummaryError as :func:`read_summary`)."""
    found = dict(content)
    for name in OPTIONAL:
        if found.get(name) == {}:
            found[name] = None
    for name in EXPLAINED:
        if found.get(name) and found[name].keys() == {"missing"}:
            found[name] = found[name]["missing"]
    try:
        return msgspec.convert(found, Summary, dec_hook=decode_table)
    except msgspec.ValidationError as e:
        raise SummaryError(str(e)) from None


def as_json(summary: Summary) -> dict[str, Any]:
    """The content of ``summary.json``."""
    found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(summary))
    for name in OPTIONAL:
        if found[name] is None:
            found[name] = {}
    for name in EXPLAINED:
        if isinstance(found[name], str):
            found[name] = {"missing": found[name]}
    return found


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


def decode_table(kind: type, found: Any) -> Any:
    """As ``dec_hook`` of msgspec: the type of a table of latencies."""
    if kind is LatencyTable and isinstance(found, dict):
        return LatencyTable(found)
    raise msgspec.ValidationError(f"Expected `object`, got `{type(found).__name__}`")
