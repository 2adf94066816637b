"""Tables of what gates and SLOs may name, for ``docs/gates.md``."""

import re
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from msgspec import inspect

from llm_locust.metrics.catalogue import LATENCIES
from llm_locust.metrics.gate_outcomes import fewest_for, fewest_for_certified
from llm_locust.metrics.gates import EDGE, NUMBERS, SHARES, STATISTICS
from llm_locust.metrics.summary_types.requests import Goodput, RequestCounts, Throughput

_TABLE = re.compile(r"(<!-- table of ([a-z ]+) -->\n).*?(<!-- end of table -->)", re.DOTALL)

_SECTIONS = MappingProxyType({"goodput": Goodput, "requests": RequestCounts, "throughput": Throughput})


_EDGE_MEANING = "of a search (`--find`): the lower end of the interval of its answer, or its lower bound"


def with_gate_tables(text: str) -> str:
    """``docs/gates.md`` with its tables made again (KeyError: a table that is none of these)."""
    return _TABLE.sub(lambda found: f"{found[1]}{''.join(_MAKERS[found[2]]())}{found[3]}", text)


def _run_metrics() -> Iterator[str]:
    yield "| metric | limit | meaning | in summary.json |\n|---|---|---|---|\n"
    forms = dict.fromkeys(SHARES, "a share: `95%` or `0.95`") | dict.fromkeys(NUMBERS, "a number")
    for metric, (section, name) in (SHARES | NUMBERS).items():
        yield f"| `{metric}` | {forms[metric]} | {_meaning(section, name)} | `{section}.{name}` |\n"
    yield f"| `{EDGE}` | a lower limit, a number | {_EDGE_MEANING} | `search.answer.low` |\n"


def _latencies() -> Iterator[str]:
    yield "| latency | meaning | in a gate | in an SLO | failed requests |\n|---|---|---|---|---|\n"
    for metric in LATENCIES:
        gated, limited = ("yes" if has else "" for has in (metric.is_gated, metric.is_limited))
        failed = "above any limit" if metric.is_of_answer else "as all others"
        yield f"| `{metric.key}` | {metric.definition} | {gated} | {limited} | {failed} |\n"


def _sample_sizes() -> Iterator[str]:
    yield "| statistic | samples for a limit | samples for a `certified` limit |\n|---|---|---|\n"
    for statistic in STATISTICS:
        if statistic in ("mean", "max"):
            yield f"| `{statistic}` | 1 | |\n"
        else:
            certified = fewest_for_certified(statistic)
            yield f"| `{statistic}` | {fewest_for(statistic):,} | {certified:,} |\n"


def _meaning(section: str, name: str) -> str:
    struct = inspect.type_info(_SECTIONS[section])
    assert isinstance(struct, inspect.StructType)
    (field,) = (field for field in struct.fields if field.name == name)
    kind: inspect.Type | None = field.type
    while isinstance(kind, inspect.Metadata | inspect.UnionType):
        if isinstance(kind, inspect.Metadata) and kind.extra:
            return str(kind.extra["meaning"])
        kind = kind.type if isinstance(kind, inspect.Metadata) else kind.types[0]
    raise KeyError(f"{section}.{name} has no meaning")


_MAKERS: Mapping[str, Callable[[], Iterator[str]]] = MappingProxyType(
    {"run metrics": _run_metrics, "latencies": _latencies, "sample sizes": _sample_sizes}
)
