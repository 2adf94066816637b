"""Proxies that the environment names. A load is never sent through one: it would measure the proxy.

So where curl would use a proxy, the target is refused until the environment says that it is reached directly.
"""

from collections.abc import Mapping
from ipaddress import ip_address, ip_network
from re import split

from llm_locust.client.http.target import Target, TargetError


def refuse_proxy(target: Target, environ: Mapping[str, str]) -> None:
    """Refuse a target that curl would reach through a proxy (raises TargetError)."""
    variable = proxy_variable(target, environ)
    if variable is not None:
        raise TargetError(
            f"{variable} is set, by which curl would reach {target.url}; a load is sent directly, without a "
            f"proxy: if the server can be reached so, say it by NO_PROXY={target.host} (or NO_PROXY=*)"
        )


def proxy_variable(target: Target, environ: Mapping[str, str]) -> str | None:
    """The environment variable with the proxy that curl would use for a target; None without one.

    ``http_proxy`` counts in small letters only: in capitals a web server sets it from a request's header.
    This machine itself is reached directly, unlike with curl.
    """
    names = (f"{target.scheme}_proxy", *(("HTTPS_PROXY",) if target.scheme == "https" else ()))
    named = (*names, "all_proxy", "ALL_PROXY")
    variable = next((name for name in named if environ.get(name, "").strip()), None)
    if variable is None or _is_loopback(target.host):
        return None
    excepted = environ.get("no_proxy") or environ.get("NO_PROXY") or ""
    is_direct = any(_matches(target, entry) for entry in split(r"[\s,]+", excepted.strip()) if entry)
    return None if is_direct else variable


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _matches(target: Target, entry: str) -> bool:
    """Whether an entry of ``NO_PROXY`` is of this host: itself, a domain of its, a network, or ``*``."""
    if entry == "*":
        return True
    host = target.host.lower().rstrip(".")
    try:
        return ip_address(host) in ip_network(entry.strip("[]"), strict=False)
    except ValueError:
        pass
    name, _, port = entry.lower().rpartition(":") if entry.count(":") == 1 else (entry.lower(), "", "")
    if port and port != str(target.port):
        return False
    name = name.lstrip(".").rstrip(".")
    return bool(name) and (host == name or host.endswith(f".{name}"))
