"""A scenario as a whole: from its file, and to the workers that have not got the file.

What a scenario says comes after the command line and the environment, and before the defaults:
``options`` holds what it says of the run's options and nothing else.
"""

import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from llm_locust.core.texts import parse_time
from llm_locust.deployment.targets import Arm
from llm_locust.scenario import readers, tree
from llm_locust.scenario.classes import (
    A_PRESET,
    PRESETS,
    SHARED,
    TrafficClass,
    read_arms,
    read_classes,
    read_preset,
    scenario_path,
    sole_class,
)
from llm_locust.scenario.readers import DatasetSource, Grammar
from llm_locust.scenario.tree import (
    Context,
    Items,
    Key,
    Node,
    Part,
    Place,
    Reader,
    ScenarioError,
    TreeKey,
    from_plain,
    key,
    parse_yaml,
    plain,
    read_text,
)
from llm_locust.wire.foreign_text import without_keys
from llm_locust.wire.headers import secret_texts

# --- Where a scenario comes from: ``about`` at its top level


def _line(node: Node, name: str, context: Context) -> str:
    found = tree.text(node, name).strip()
    if not found.isprintable():
        raise tree.wrong(node, name, "one line of printable characters")
    return found


def _lines(node: Node, name: str, context: Context) -> tuple[str, ...]:
    nodes = node.nodes if isinstance(node, Items) else (node,)
    return tuple(_line(item, name, context) for item in nodes)


class About(Part, frozen=True, kw_only=True):
    """Where a scenario comes from: one line on what it is, its ``source``, the day on which its figures were
    compared with that, gates that the source sets for each load (``limits``: a sweep has none of its own),
    and in what a run with it ``differs`` from what the source asks for."""

    title: str = key(_line, "text", "one line; required", required=True)
    source: str = key(_line, "text", "where the figures are from", "")
    date: str = key(_line, "text", "when they were compared with the source", "")
    limits: str = key(
        readers.GATES.read,
        "gates",
        "of each load, where the run has several: for `llm-locust report RUN --where stage==N --gate ...`",
        "",
    )
    differs: tuple[str, ...] = key(
        _lines,
        "text, or list of texts",
        "in what a run with the file differs from what the source asks for",
        (),
    )


# --- Points of MLPerf Endpoints: the numbers of concurrent requests at which a server is measured
#
# Between the lowest and the highest concurrency lie three regions of equal ratio, counted from the lowest.
# A set has the lowest (Ultra-Low), at least one point in each region and three more in any, the highest
# being one of them. Source: mlcommons/endpoints_policies, v1.0.


#: The lowest concurrency is one of these, and the highest is above all of them.
ULTRA_LOW = range(1, 33)

#: The highest point may be this much above the highest concurrency that was declared.
MARGIN = 1.10

_MOST = 1_000_000


@dataclass(frozen=True, slots=True)
class Points:
    """Regions as (first, last), and a set of points, seven if no region is narrower than two of them.

    A narrow range may leave a region empty, its first above its last. ``highest`` is the margin's end.
    """

    low: tuple[int, int]
    medium: tuple[int, int]
    high: tuple[int, int]
    highest: int
    planned: tuple[int, ...]


def plan_points(c_min: int, c_max: int) -> Points:
    """Plan the points from ``c_min`` to ``c_max``: of each region the geometric middle and the end.

    Raises:
        ValueError: ``c_min`` is not in 1 .. 32, or ``c_max`` not above 32.
    """
    if c_min not in ULTRA_LOW:
        raise ValueError(f"the lowest concurrency is one of 1 .. {ULTRA_LOW[-1]}, not {c_min}")
    if not ULTRA_LOW[-1] < c_max <= _MOST:
        raise ValueError(
            f"the highest concurrency is above {ULTRA_LOW[-1]} and at most {_MOST:,}, not {c_max}"
        )
    third = math.log2(c_max - c_min) / 3
    ends = (round(c_min + 2**third), round(c_min + 2 ** (2 * third)), c_max)
    firsts = (c_min + 1, ends[0] + 1, ends[1] + 1)
    planned = {c_min}
    for first, end in zip(firsts, ends, strict=True):
        planned |= {round(math.sqrt(first * end)), end} if first <= end else set()
    low, medium, high = zip(firsts, ends, strict=True)
    # Rounded before: 1.1 * 1,000 is 1,100.0000000000002 in binary.
    return Points(low, medium, high, math.ceil(round(MARGIN * c_max, 6)), tuple(sorted(planned)))


#: Where the warm-up's prompts come from: draws of its own, or the first of the run's.
WARM_UP_PROMPTS = ("own", "shared")

_ERROR_RATE = re.compile(r"\s*>?\s*(?P<share>[0-9]{1,3}(?:\.[0-9]{1,9})?)%\s*(?:over\s+(?P<time>\S+)\s*)?")
_ERROR_RATE_FORM = "a share and the time it is taken over, as >20% over 30s"


def _error_rate(node: Node, name: str, context: Context) -> tuple[float, float]:
    """The share and the seconds of ``>20% over 30s``."""
    match = _ERROR_RATE.fullmatch(tree.text(node, name, _ERROR_RATE_FORM))
    if match is None:
        raise tree.wrong(node, name, _ERROR_RATE_FORM)
    share = float(match["share"]) / 100
    try:
        over_s = parse_time(match["time"] or "30s")
    except ValueError as e:
        raise ScenarioError(
            node.place, f"{name} {tree.shown(node)}: {e}; allowed is {_ERROR_RATE_FORM}"
        ) from e
    if share >= 1 or over_s <= 0:
        raise ScenarioError(
            node.place, f"{name} {tree.shown(node)}: a share below 100% over a time above 0 s"
        )
    return share, over_s


class WarmUp(Part, frozen=True, kw_only=True):
    """The load before the measured phase. Its ``duration`` is that of the option ``warmup``."""

    duration: str | None = key(readers.duration, "time", "length of the warm-up; not together with `warmup`")
    prompts: str = key(
        tree.word(*WARM_UP_PROMPTS),
        "a name",
        "`own` (default): drawn separately from the run's; `shared`: the first of the run's",
        "own",
    )


class Stop(Part, frozen=True, kw_only=True):
    """When a run ends before its time: a share of failed requests (0 .. 1) above the first of ``error_rate``
    within any so many seconds as the second, or a queue that grows without end."""

    error_rate: tuple[float, float] | None = key(
        _error_rate,
        "text",
        "`>20% over 30s`: of the requests that ended in the last 30 s, at least 10, more than this share "
        "failed, beyond chance; one that hangs counts when its timeout ends it; default of `over`: 30 s",
    )
    oversaturation: bool = key(tree.truth, "true or false", "the queue grows without end", False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A checked scenario.

    ``options`` are values for argparse by their keys; paths in them start at the working directory.
    ``dataset`` is the run's, with the order and format that the option cannot say. ``classes`` holds at
    least one; without ``classes`` in the file a nameless one. ``needs`` has names of options that the run
    must be given besides. ``document`` is the file's content as plain values, header values included;
    ``secret_keys`` as in :class:`Grammar`.
    """

    path: str
    options: Mapping[str, Any] = field(repr=False)
    classes: tuple[TrafficClass, ...]
    dataset: DatasetSource | None = None
    warm_up: WarmUp = field(default_factory=WarmUp)
    stop: Stop = field(default_factory=Stop)
    arms: tuple[Arm, ...] = ()
    about: About | None = None
    needs: tuple[str, ...] = ()
    document: Mapping[str, Any] = field(repr=False, compare=False)
    secret_keys: frozenset[str] = field(default=frozenset(), repr=False, compare=False)

    @property
    def secrets(self) -> tuple[str, ...]:
        """Texts that must stand in no file, log or page: what is fixed of the headers' values."""
        headers = (*(c.headers for c in self.classes), *(arm.headers for arm in self.arms))
        return tuple(sorted({text for each in headers for text in secret_texts(each)}))

    @property
    def public_document(self) -> dict[str, Any]:
        """:attr:`document` without the values of headers, and of fields that have the name of a key."""
        public = {
            str(key): _without_headers(key, value, self.secret_keys) for key, value in self.document.items()
        }
        return dict(without_keys(public))

    def text_for_workers(self) -> str:
        """JSON that :meth:`from_text` makes this scenario of; equal for files that say the same.

        Paths in it start at the folder of ``path``. It holds the headers' values: not for files or logs.
        """
        return json.dumps({"path": self.path, "scenario": self.document}, ensure_ascii=False)

    @classmethod
    def from_text(cls, text: str, grammar: Grammar) -> "Scenario":
        """The inverse of :meth:`text_for_workers`, on a machine that has the files which it names.

        Raises:
            ScenarioError: one of them is not there, or the text is none of a scenario.
        """
        try:
            content = json.loads(text)
            path, document = (
                str(content["path"]),
                from_plain(content["scenario"], Place(str(content["path"]))),
            )
        except (ValueError, KeyError, TypeError, RecursionError) as e:
            raise ScenarioError(Place("scenario"), f"not the text of a scenario: {e}") from e
        return _scenario(document, path, grammar)


def _without_headers(key: str, value: Any, secret: frozenset[str]) -> Any:
    if key.replace("-", "_") == "headers" and isinstance(value, dict):
        return dict.fromkeys(value, "***")
    if key.replace("-", "_") in secret:
        return [f"{text.partition('=')[0]}=***" for text in ([value] if isinstance(value, str) else value)]
    if isinstance(value, dict):
        return {name: _without_headers(name, item, secret) for name, item in value.items()}
    if isinstance(value, list):
        return [_without_headers("", item, secret) for item in value]
    return value


def load_scenario(path: str | os.PathLike[str], grammar: Grammar) -> Scenario:
    """The scenario in a file.

    Args:
        path: of a YAML file, or the name of a protocol; paths in it start at its folder.
        grammar: the options that it may give.

    Raises:
        ScenarioError: in one line what is wrong, where, and what is allowed.
    """
    name = scenario_path(os.fspath(path))
    return parse_scenario(read_text(name), name, grammar)


def parse_scenario(text: str, path: str, grammar: Grammar) -> Scenario:
    """The scenario of a YAML text that stands in the file at ``path``; see :func:`load_scenario`."""
    return _scenario(parse_yaml(text, path), path, grammar)


def _scenario(root: Node, path: str, grammar: Grammar) -> Scenario:
    context = Context(os.path.dirname(path))
    keys: Mapping[str, Reader] = {**grammar.options, **TOP_KEYS}
    entries = tree.known(root, "a scenario", keys)
    found = tree.read_entries(entries, keys, context)
    shared = {key: value for key, value in found.items() if key in SHARED}
    classes = sole_class(shared)
    if "classes" in entries:
        classes = read_classes(entries["classes"].node, shared, context)
    if "request_rate" in entries and classes[0].rate is not None:
        raise ScenarioError(
            entries["request_rate"].key, "request_rate beside classes that have a rate of their own; give one"
        )
    if "dataset" in entries and "input_tokens" in entries:
        raise ScenarioError(
            entries["input_tokens"].key,
            "input_tokens beside a dataset, whose prompts have lengths of their own",
        )
    return Scenario(
        path=path,
        options=_options(entries, found, grammar),
        classes=classes,
        dataset=readers.dataset(entries["dataset"].node, "dataset", context)
        if "dataset" in entries
        else None,
        warm_up=found.get("warm_up", WarmUp()),
        stop=found.get("stop", Stop()),
        arms=found.get("arms", ()),
        about=found.get("about"),
        needs=found.get("needs", ()),
        document=plain(root),
        secret_keys=grammar.secret,
    )


def _options(entries: Mapping[str, TreeKey], found: Mapping[str, Any], grammar: Grammar) -> dict[str, Any]:
    """What the file says of options; what it leaves open, a preset at its top level may say."""
    said = {key: value for key, value in found.items() if key in grammar.options}
    if "warm_up" in found and (duration := found["warm_up"].duration) is not None:
        if "warmup" in said:
            raise ScenarioError(entries["warmup"].key, "both warmup and the duration of warm_up; give one")
        said["warmup"] = duration
    if "preset" in found:
        usual = PRESETS[found["preset"]]
        if "dataset" not in said:
            said = {"input_tokens": usual.input_tokens, "output_tokens": usual.output_tokens, **said}
        if usual.slo:
            said = {"slo": usual.slo, **said}
    return said


def _later(node: Node, name: str, context: Context) -> None:
    """Classes are read when it is known what they take from the top level."""


#: Keys of the run as a whole that are no options.
OF_RUN: Mapping[str, Key] = {
    "preset": Key(read_preset, A_PRESET, "lengths and limits that no option sets"),
    "needs": Key(
        lambda node, name, _: tuple(tree.texts(node, name)),
        "name, or list of names",
        "options that the run must be given besides, such as `trajectories`: it is refused without them",
    ),
    "about": Key(About.read, "[mapping](#about)", "where the scenario comes from; no effect on the run"),
    "warm_up": Key(WarmUp.read, "[mapping](#warm_up)", "the load before the measured phase"),
    "stop": Key(
        Stop.read, "[mapping](#stop)", "rules that end the run early; the report shows which one did"
    ),
    "arms": Key(
        read_arms,
        "[mapping](#arms) of names",
        "what one run compares: each request, or conversation, goes to one of them at random",
    ),
    "classes": Key(
        _later,
        "list, or mapping of names",
        "the [classes](#classes); without it there is one class, made of the keys above and below",
    ),
}

#: Everything that stands at the top level besides options of the run.
TOP_KEYS: Mapping[str, Key] = {**SHARED, **OF_RUN}
