"""Roles of servers in disaggregated serving, each with who says so.

In this order: what the run was told (``prefill=URL``) or the pod's label, what a server's own samples are
labelled with, and what its counts show. Counts show roles only together: a server that gives one token for
each of its requests prefills if others give more, and those decode if KV caches came to them. Everything else
has no role: a server without a role is one that does both.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import msgspec

from llm_locust.metrics.deployment.pools.names import DECODE, PREFILL, ROLES
from llm_locust.metrics.deployment.server_series import ServerSeries

#: Name of the sample that a scraper adds for a server whose role it knows before the first page. Its labels
#: are ``role`` and ``source``.
ROLE_SAMPLE = "role"

#: Labels in which servers name their role: SGLang's, Dynamo's.
ROLE_LABELS = ("engine_type", "dynamo_component")

_COUNTS = "its counts"
#: Sources that tell the role of a server only if it answers.
SEEN = frozenset({*ROLE_LABELS, _COUNTS})

#: What counts show is by so many requests at least.
_LEAST_REQUESTS = 10
#: Tokens a request of a server that prefills, at most, and of one that decodes, at least.
_ONE_TOKEN, _SEVERAL_TOKENS = 1.1, 1.5
#: Share of the prompt tokens that came from elsewhere, from which on a server is one that decodes.
_RECEIVED = 0.5


@dataclass(frozen=True, slots=True)
class Role:
    """``name`` is prefill or decode; ``source`` says who says so, ``doubt`` who says another one."""

    name: str
    source: str
    doubt: str | None = None


def roles_of(series: ServerSeries) -> dict[str, Role]:
    """The roles of the targets that have one."""
    told: dict[str, list[tuple[str, str]]] = {}
    for key in series.by_key:
        if said := _said(key.name == ROLE_SAMPLE, key.labels):
            told.setdefault(key.target, []).append(said)
    shown = _shown(series)
    found = {}
    for target in series.targets:
        of_target = sorted(set(told.get(target, ())), key=lambda said: said[1] in ROLE_LABELS)
        names = {name for name, source in of_target if source in ROLE_LABELS}
        if len(names) > 1:  # a page of several engines: it has no role of its own
            of_target = [said for said in of_target if said[1] not in ROLE_LABELS]
        if target in shown:
            of_target.append((shown[target], _COUNTS))
        if of_target:
            (name, source), *others = of_target
            found[target] = Role(name, source, next((by for other, by in others if other != name), None))
    return found


def role_now(samples: Iterable[tuple[str, str]]) -> str | None:
    """The role that the samples of one scrape tell, by their names and labels; None where they tell none,
    or both."""
    told = {said for name, labels in samples if (said := _said(name == ROLE_SAMPLE, labels))}
    names = {role for role, source in told if source not in ROLE_LABELS} or {role for role, _ in told}
    return names.pop() if len(names) == 1 else None


@lru_cache(4_096)
def _said(is_role: bool, text: str) -> tuple[str, str] | None:
    """The role that a sample tells by its labels, and who says so; None where it tells none."""
    labels = msgspec.json.decode(text, type=dict[str, str])
    if is_role:
        role, source = labels.get("role", ""), labels.get("source", "")
        return (role, source) if role in ROLES and source else None
    return next(((labels[label], label) for label in ROLE_LABELS if labels.get(label) in ROLES), None)


def _shown(series: ServerSeries) -> dict[str, str]:
    """Roles by the counts of the window: of none, if only one of the two is seen."""
    prefills = {target for target in series.targets if _prefills(series, target)}
    decodes = {target for target in series.targets if _decodes(series, target)}
    if not prefills or not decodes:
        return {}
    return dict.fromkeys(prefills, PREFILL) | dict.fromkeys(decodes, DECODE)


def _prefills(series: ServerSeries, target: str) -> bool:
    finished, generated = (_total(series, name, target) for name in ("finished", "generation_tokens"))
    return finished >= _LEAST_REQUESTS and 0 < generated <= _ONE_TOKEN * finished


def _decodes(series: ServerSeries, target: str) -> bool:
    finished, generated = (_total(series, name, target) for name in ("finished", "generation_tokens"))
    if generated < max(_LEAST_REQUESTS, _SEVERAL_TOKENS * finished):
        return False
    prompts, received = (_total(series, f"prompt_tokens{of}", target) for of in ("", "_received"))
    transfers = [_total(series, name, target) for name in ("kv_transfer_s_count", "kv_transfers_failed")]
    return sum(transfers) > 0 or received >= _RECEIVED * prompts > 0


def _total(series: ServerSeries, name: str, target: str) -> float:
    return sum(each.total for each in series.named(name, target).values())


def of_role(roles: Mapping[str, Role], name: str, among: Iterable[str]) -> frozenset[str]:
    """The targets of a role."""
    return frozenset(target for target in among if target in roles and roles[target].name == name)
