"""Roles of servers in disaggregated serving: how they are written before a URL, and each with who says so.

In this order: what the run was told (``prefill=URL``) or the pod's label, what a server's own samples are
labelled with, and what its counts show. Counts show roles only together: a server that gives one token
for each of its requests prefills if others give more, and those decode if KV caches came to them.
Everything else has no role: a server without a role is one that does both.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import msgspec

from llm_locust.metrics.server_series import ServerSeries

PREFILL, DECODE = "prefill", "decode"
ROLES = (PREFILL, DECODE)

_ROLE = re.compile(rf"\s*({'|'.join(ROLES)})=")


def split_role(url: str) -> tuple[str | None, str]:
    """The role before a URL (``prefill=URL``), None without one, and the URL."""
    found = _ROLE.match(url)
    return (found[1], url[found.end() :].strip()) if found else (None, url.strip())


def label_of_server(name: str, role: str | None) -> str:
    """A server's name where roles stand in it."""
    return f"{role} {name}" if role else name


def role_of_label(label: str) -> str:
    """The role in a name that :func:`label_of_server` made; empty without one."""
    role, space, _ = label.partition(" ")
    return role if space and role in ROLES else ""


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
    by_labels: dict[str, list[tuple[str, str]]] = {}
    for which in series.by_key:
        if role := _role_in(which.name == ROLE_SAMPLE, which.labels):
            by_labels.setdefault(which.target, []).append(role)
    by_counts = _by_counts(series)
    roles = {}
    for target in series.targets:
        of_target = sorted(set(by_labels.get(target, ())), key=lambda role: role[1] in ROLE_LABELS)
        names = {name for name, source in of_target if source in ROLE_LABELS}
        if len(names) > 1:  # a page of several engines: it has no role of its own
            of_target = [role for role in of_target if role[1] not in ROLE_LABELS]
        if target in by_counts:
            of_target.append((by_counts[target], _COUNTS))
        if of_target:
            (name, source), *others = of_target
            roles[target] = Role(name, source, next((by for other, by in others if other != name), None))
    return roles


def role_now(samples: Iterable[tuple[str, str]]) -> str | None:
    """The role that the samples of one scrape tell, by their names and labels; None where they tell none,
    or both."""
    roles = {role for name, labels in samples if (role := _role_in(name == ROLE_SAMPLE, labels))}
    names = {name for name, source in roles if source not in ROLE_LABELS} or {name for name, _ in roles}
    return names.pop() if len(names) == 1 else None


@lru_cache(4_096)
def _role_in(is_role: bool, text: str) -> tuple[str, str] | None:
    """The role that a sample tells by its labels, and who says so; None where it tells none."""
    labels = msgspec.json.decode(text, type=dict[str, str])
    if is_role:
        role, source = labels.get("role", ""), labels.get("source", "")
        return (role, source) if role in ROLES and source else None
    return next(((labels[label], label) for label in ROLE_LABELS if labels.get(label) in ROLES), None)


def _by_counts(series: ServerSeries) -> dict[str, str]:
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


def of_role(roles: Mapping[str, Role], name: str) -> frozenset[str]:
    """The targets of a role."""
    return frozenset(target for target, role in roles.items() if role.name == name)


def pool_sizes(series: ServerSeries | None) -> dict[str, int]:
    """How many servers have each role; nothing where none has one."""
    roles = {} if series is None else roles_of(series)
    return {name: n for name in ROLES if (n := len(of_role(roles, name)))}
