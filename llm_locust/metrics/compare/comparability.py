"""Why runs may not be set against each other: plain sentences, the gravest first."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from llm_locust.core.figures import quantity
from llm_locust.core.manifest import Manifest
from llm_locust.metrics.columns import SOURCES
from llm_locust.metrics.compare.compared import Compared
from llm_locust.metrics.sections.completeness import completeness

#: Window lengths and answer lengths may differ by this share.
_ALIKE = 0.05


def doubts(run: Compared) -> list[str]:
    """What stands against comparing a run with any other; each sentence is without its subject."""
    found = []
    client = run.client()
    if client["verdict"] != "ok":
        found.append(f"its client is {client['verdict']}: {'; '.join(client['reasons'])}")
    records = completeness(run.manifest, len(run.c))
    if not records["complete"]:
        lost = f"{records['records_lost']} requests have no record"
        found.append(f"it is incomplete: {lost}, {records['workers_lost']} workers were lost")
    if records["cut_short"]:
        found.append(f"it was cut short: {run.manifest.stop_reason or 'a fault'}")
    return found


def unlike(base: Compared, new: Compared, not_load: frozenset[str] = frozenset()) -> list[str]:
    """A sentence for each thing that may make a difference beside the server itself.

    Args:
        not_load: options that do not change what was asked of the server, or that have a sentence of their
            own.
    """
    a, b = base.manifest, new.manifest
    return [
        *_models(a, b),
        *_load(a, b, not_load),
        *_windows(base, new),
        *_answers(base, new),
        *_seeds(a, b),
    ]


def unlike_beside_load(base: Compared, new: Compared, not_load: frozenset[str] = frozenset()) -> list[str]:
    """As :func:`unlike`, of runs that are to differ in how much was asked for, for how long, by which seed.

    Args:
        not_load: with the options that say how much.
    """
    return [
        *_models(base.manifest, new.manifest),
        *_load(base.manifest, new.manifest, not_load),
        *_answers(base, new),
    ]


def models_differ(base: Compared, new: Compared) -> bool:
    """Whether tokens of the two runs are of different tokenizers, as far as is known."""
    return base.manifest.model != new.manifest.model


def _models(a: Manifest, b: Manifest) -> Iterator[str]:
    if a.model != b.model:
        yield (
            f"different models: {_shown(a.model)} and {_shown(b.model)}. Tokens of different tokenizers are "
            "not comparable: use output characters/s instead of the figures per token (†)"
        )


def _load(a: Manifest, b: Manifest, not_load: frozenset[str]) -> Iterator[str]:
    if a.open_loop != b.open_loop:
        kinds = ["open loop" if m.open_loop else "closed loop" for m in (a, b)]
        yield f"different load: {kinds[0]} and {kinds[1]}"
    if (a.scenario_document or a.scenario) != (b.scenario_document or b.scenario):
        yield f"different scenarios: {_shown(a.scenario)} and {_shown(b.scenario)}"
    for option in sorted((a.options.keys() | b.options.keys()) - not_load):
        if a.options.get(option) != b.options.get(option):
            ours, theirs = (_shown(m.options.get(option)) for m in (a, b))
            yield f"different --{option.replace('_', '-')}: {ours} and {theirs}"
    if a.class_slos != b.class_slos:
        yield "different limits of classes: each run's own are used"
    if a.slo != b.slo:
        yield f"different SLOs: {_shown(a.slo)} and {_shown(b.slo)}; both are judged by one, see above"


def _windows(base: Compared, new: Compared) -> Iterator[str]:
    a, b = base.window, new.window
    if base.manifest.warmup_s != new.manifest.warmup_s:
        yield f"different warm-up: {base.manifest.warmup_s:g} s and {new.manifest.warmup_s:g} s"
    if _rule(base) != _rule(new):
        yield f'different windows: "{a.rule}" and "{b.rule}"'
    if _differ(a.seconds, b.seconds):
        yield f"different window lengths: {quantity(a.seconds)} s and {quantity(b.seconds)} s"


def _rule(run: Compared) -> str:
    """What kind of window it is; the numbers in a rule, such as the plateau, are results."""
    return run.window.rule.partition(":")[0]


def _answers(base: Compared, new: Compared) -> Iterator[str]:
    if not models_differ(base, new):
        ours, theirs = (_mean_output(run) for run in (base, new))
        if _differ(ours, theirs):
            yield (
                f"different answer lengths: {quantity(ours)} and {quantity(theirs)} output tokens (mean); "
                "they change E2EL and rates"
            )
    sources = [_main_source(run) for run in (base, new)]
    if None not in sources and sources[0] != sources[1]:
        yield f"output tokens are counted differently: {sources[0]} and {sources[1]}"
    replicas = [len(set(run.c.replica.codes[run.c.replica.codes >= 0].tolist())) for run in (base, new)]
    if all(replicas) and replicas[0] != replicas[1]:
        yield f"different numbers of replicas: {replicas[0]} and {replicas[1]}"


def _seeds(a: Manifest, b: Manifest) -> Iterator[str]:
    if a.seed != b.seed:
        yield f"different seeds: {a.seed} and {b.seed}; lengths, prompts and schedule differ"


def _mean_output(run: Compared) -> float:
    tokens = run.c.output_tokens[run.population.ok]
    known = tokens[~np.isnan(tokens)]
    return float(known.mean()) if len(known) else np.nan


def _main_source(run: Compared) -> str | None:
    """Who counted most of the answers' tokens."""
    if not len(run.population.ok):
        return None
    counts = np.bincount(run.c.source[run.population.ok], minlength=len(SOURCES))
    return str(SOURCES[int(counts.argmax())])


def _differ(a: float, b: float) -> bool:
    """False where one is not known."""
    return abs(a - b) > _ALIKE * max(a, b)


def _shown(value: Any) -> str:
    """An option's value; of the content of a file, such as a model's shape, the name that it gives itself."""
    if isinstance(value, dict) and value.get("name"):
        value = value["name"]
    return "none" if value in (None, "", []) else str(value)
