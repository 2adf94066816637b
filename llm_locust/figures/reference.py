"""What is made of the types of a summary: tables of keys and of gates for the pages, and the JSON schema."""

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from itertools import groupby
from pathlib import Path
from types import MappingProxyType

import msgspec
from msgspec import inspect

from llm_locust.figures.counts import RequestCounts
from llm_locust.figures.gate_rules import fewest_for, fewest_for_certified
from llm_locust.figures.goodput import Goodput
from llm_locust.figures.inputs import Images
from llm_locust.figures.parts import GroupPart, PartFigures, RequestPart
from llm_locust.figures.servers import Servers
from llm_locust.figures.summary import EXPLAINED, Summary, json_schema
from llm_locust.metrics.catalogue import LATENCIES
from llm_locust.metrics.limits import EDGE, NUMBERS, SHARES, STANDSTILL, STATISTICS
from llm_locust.metrics.requests.rates import Throughput
from llm_locust.metrics.structs import LatencyKeys, LatencyTable

#: What stands around the place of a table in ``docs/summary-keys.md``: the sections that it has.
TABLE = re.compile(r"(<!-- keys of ([a-z_ ]+) -->\n).*?(<!-- end of keys -->)", re.DOTALL)

SCHEMA_FILE = "summary.schema.json"

_HEAD = "| key | meaning, unit, estimator | of what |\n|---|---|---|\n"

#: They repeat what has rows of its own.
_TOLD_BY_OTHERS = ("by_class", "by_name", "latency_ms_adjusted")
_REPEATED = (RequestPart, GroupPart, PartFigures)

#: Pattern of keys, meaning, of what.
Row = tuple[str, str, str]


def with_key_tables(text: str) -> str:
    """``docs/summary-keys.md`` with its tables of keys, which the repository does not have.

    The place of ``others`` has those that no place names.
    """
    named = {name for found in TABLE.finditer(text) for name in found[2].split()}
    others = " ".join(name for name in sections() if name not in {*named, *_TOLD_BY_OTHERS})

    def filled(found: re.Match[str]) -> str:
        return f"{found[1]}{key_table(found[2].replace('others', others).split())}{found[3]}"

    return TABLE.sub(filled, text)


def sections() -> list[str]:
    """The sections of a summary, in their order in the file."""
    return [field.encode_name for field in _of(Summary).fields]


def key_table(names: list[str]) -> str:
    """The keys of these sections of a summary as a table in Markdown (KeyError: one is unknown)."""
    fields = {field.encode_name: field for field in _of(Summary).fields}
    rows = [row for name in names for row in _section(fields[name])]
    return _HEAD + "".join(f"| `{pattern}` | {meaning} | {of} |\n" for pattern, meaning, of in rows)


def write_gates(docs: Path) -> None:
    """Write the tables of ``gates.md`` in the folder of the pages."""
    gates = docs / "gates.md"
    gates.write_text(with_gate_tables(gates.read_text()))


def write_reference(docs: Path, site: Path) -> None:
    """Write what only the site has: ``summary-keys.md`` with its tables, and the JSON schema beside it."""
    site.mkdir(parents=True, exist_ok=True)
    page = with_key_tables((docs / "summary-keys.md").read_text())
    (site / "summary-keys.md").write_text(page.replace(f"`{SCHEMA_FILE}`", f"[{SCHEMA_FILE}]({SCHEMA_FILE})"))
    (site / SCHEMA_FILE).write_text(schema_text())


def schema_text() -> str:
    """The JSON schema of ``summary.json``, as ``llm-locust schema`` prints it."""
    return msgspec.json.format(msgspec.json.encode(json_schema()), indent=2).decode() + "\n"


def _section(field: inspect.Field) -> Iterator[Row]:
    yield from _rows([field], "")
    if field.name in EXPLAINED:
        yield f"{field.name}.missing", "why there is none", ""


def _rows(fields: list[inspect.Field], prefix: str) -> Iterator[Row]:
    """A row for neighbours of the same meaning, and the rows of what is below them."""
    described = [(field.encode_name, _unwrapped(field.type)[1], *_below(field.type)) for field in fields]
    for (words, struct), alike in groupby(described, key=lambda each: each[1:3]):
        names = [f"{name}{suffix}" for name, *_, suffix in alike]
        pattern = prefix + (names[0] if len(names) == 1 else f"{{{','.join(names)}}}")
        if words is not None:
            yield pattern, words["meaning"], words["of"]
        if struct is not None and struct.cls not in _REPEATED:
            yield from _rows(list(struct.fields), f"{pattern}.")


def _below(kind: inspect.Type) -> tuple[inspect.StructType | None, str]:
    """The struct that a value has in it, and how keys of it are written behind that of the value."""
    bare, _ = _unwrapped(kind)
    if isinstance(bare, inspect.StructType):
        return bare, ""
    if isinstance(bare, inspect.CustomType) and bare.cls is LatencyTable:
        return _of(LatencyKeys), ""
    if isinstance(bare, inspect.DictType):
        struct, suffix = _below(bare.value_type)
        return struct, f".*{suffix}"
    if isinstance(bare, inspect.ListType):
        struct, suffix = _below(bare.item_type)
        return struct, f"[]{suffix}" if struct is not None else ""
    return None, ""


def _unwrapped(kind: inspect.Type) -> tuple[inspect.Type, dict[str, str] | None]:
    """Without what says its meaning, which comes with it, and without null."""
    words = None
    while isinstance(kind, inspect.Metadata | inspect.UnionType):
        if isinstance(kind, inspect.Metadata):
            words = kind.extra or words
            kind = kind.type
        else:
            kind = next(each for each in kind.types if not isinstance(each, inspect.NoneType))
    return kind, words


def _of(struct: type[msgspec.Struct]) -> inspect.StructType:
    found = inspect.type_info(struct)
    assert isinstance(found, inspect.StructType)
    return found


# Tables of gates

_GATE_TABLE = re.compile(r"(<!-- table of ([a-z ]+) -->\n).*?(<!-- end of table -->)", re.DOTALL)

_GATED_SECTIONS = MappingProxyType(
    {
        "goodput": Goodput,
        "requests": RequestCounts,
        "throughput": Throughput,
        "images": Images,
        "server": Servers,
    }
)


_STANDSTILL_MEANING = "how long the server stood still in all, in seconds: `standstill_s<=2`"
_EDGE_MEANING = "of a search (`--find`): the lower end of the interval of its answer, or its lower bound"


def with_gate_tables(text: str) -> str:
    """``docs/gates.md`` with its tables made again (KeyError: a table that is none of these)."""
    return _GATE_TABLE.sub(lambda found: f"{found[1]}{''.join(_MAKERS[found[2]]())}{found[3]}", text)


def _run_metrics() -> Iterator[str]:
    yield "| metric | limit | meaning | in summary.json |\n|---|---|---|---|\n"
    forms = dict.fromkeys(SHARES, "a share: `95%` or `0.95`") | dict.fromkeys(NUMBERS, "a number")
    for metric, (section, name) in (SHARES | NUMBERS).items():
        yield f"| `{metric}` | {forms[metric]} | {_gate_meaning(section, name)} | `{section}.{name}` |\n"
    yield f"| `{STANDSTILL}` | a number | {_STANDSTILL_MEANING} | `reliability.standstill.seconds` |\n"
    yield f"| `{EDGE}` | a lower limit, a number | {_EDGE_MEANING} | `search.answer.low` |\n"


def _latencies() -> Iterator[str]:
    yield "| latency | meaning | in a gate | in an SLO | failed requests |\n|---|---|---|---|---|\n"
    for metric in LATENCIES:
        gated, limited = ("yes" if has else "" for has in (metric.is_gated, metric.is_limited))
        failed = "above any limit" if metric.is_of_answer else "left out: `cannot tell` where they matter"
        yield f"| `{metric.key}` | {metric.definition} | {gated} | {limited} | {failed} |\n"


def _sample_sizes() -> Iterator[str]:
    yield "| statistic | samples for a limit | samples for a `certified` limit |\n|---|---|---|\n"
    for statistic in STATISTICS:
        if statistic in ("mean", "max"):
            yield f"| `{statistic}` | 1 | |\n"
        else:
            certified = fewest_for_certified(statistic)
            yield f"| `{statistic}` | {fewest_for(statistic):,} | {certified:,} |\n"


def _gate_meaning(section: str, name: str) -> str:
    struct = inspect.type_info(_GATED_SECTIONS[section])
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


if __name__ == "__main__":
    write_gates(Path(sys.argv[1]))
    if sys.argv[2:]:
        write_reference(Path(sys.argv[1]), Path(sys.argv[2]))
