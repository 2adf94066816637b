"""Roles that replicas are given where their URLs are named, for the scraping of their metrics."""

from collections.abc import Iterable

from llm_locust.client.http.target import Target
from llm_locust.deployment.endpoints import Endpoint, EndpointError, authority
from llm_locust.metrics.deployment.pools.names import split_role

_DNS = "dns+"

#: Host and port.
_Place = tuple[str, int]


def metrics_urls(given: Iterable[str], replica_urls: Iterable[str]) -> tuple[str, ...]:
    """The metrics' URLs, each with the role of the replica at its host and port, where that has one.

    Raises:
        ValueError: a role that no metrics URL gets, so that no figure would have it, or two of one server.
    """
    roles: dict[_Place, str] = {}
    for named in replica_urls:
        role, url = split_role(named)
        if role is not None:
            target = Target.parse(url.removeprefix(_DNS))
            _note(roles, (target.host, target.port), role)
    found, scraped = [], set()
    for url in given:
        try:
            endpoint = Endpoint.parse(url)
        except EndpointError:  # refused, with its reason, by the scraper's words
            found.append(url)
            continue
        place = endpoint.host, endpoint.port
        scraped.add(place)
        if endpoint.role is not None:
            _note(roles, place, endpoint.role)
        found.append(url if endpoint.role or place not in roles else f"{roles[place]}={url}")
    for place, role in roles.items():
        if place not in scraped:
            raise ValueError(
                f"--replica-url: {authority(*place)} is a {role} server, and what it does is in its metrics: "
                "give them by --metrics-url, or leave the role out"
            )
    return tuple(found)


def _note(roles: dict[_Place, str], place: _Place, role: str) -> None:
    if roles.setdefault(place, role) != role:
        raise ValueError(
            f"--metrics-url, --replica-url: {authority(*place)} has two roles, {roles[place]} and {role}: "
            "leave one out"
        )
