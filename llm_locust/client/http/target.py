"""Server address as given by the user."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from ipaddress import ip_address, ip_network
from re import ASCII, fullmatch, search, split
from urllib.parse import SplitResult, quote, urlsplit

from llm_locust.wire.dialects import DIALECTS
from llm_locust.wire.foreign_text import public_url, url_fault

_DEFAULT_PORTS = {"http": 80, "https": 443}

#: Paths that people copy along with the address of an API, the longest first.
_ENDPOINTS = sorted(
    {*(d.path for d in DIALECTS.values() if "{" not in d.path), "/models"}, key=len, reverse=True
)


class TargetError(ValueError):
    """A host that is not a valid URL for a load; the text says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Target:
    """Server address: scheme, host, port, and the path prefix of its API (``/v1``).

    ``query`` is added to the path of every request: ``?api-version=…``, or nothing.
    """

    scheme: str
    host: str
    port: int
    base: str
    query: str = ""

    @classmethod
    def parse(cls, url: str) -> "Target":
        """Parse ``http://host:port`` with or without the API's version or another path prefix at its end.

        A path that names a version (a segment such as ``v1``) is used as the base; any other is a prefix in
        front of ``/v1``. The path of an endpoint at its end (``/chat/completions``) is left out; what is
        before it is the base, with a version or not. The same goes for a URL with ``?api-version=``.

        Raises:
            TargetError: not an http(s) URL with a host.
        """
        url = url.strip()
        parts, port = _split(url if "://" in url else f"http://{url}")
        if parts.scheme not in _DEFAULT_PORTS or not parts.hostname:
            raise TargetError(
                f"host {public_url(url)!r} is not a URL such as http://localhost:8000 or https://example.org/v1"
            )
        endpoint = endpoint_at_end(url)
        base = quote(parts.path.rstrip("/").removesuffix(endpoint), safe="/%:@!$&'()*+,;=~")
        exact = endpoint or parts.query or any(fullmatch(r"v\d+\w*", part) for part in base.split("/"))
        if not exact:
            base += "/v1"
        return cls(
            parts.scheme,
            _ascii_host(parts.hostname),
            _DEFAULT_PORTS[parts.scheme] if port is None else port,
            base,
            f"?{parts.query}" if parts.query else "",
        )

    @classmethod
    def at(cls, url: str) -> "Target":
        """Target with exactly this :attr:`url`: its path is used as the base, with a version or not.

        Raises:
            TargetError: as :meth:`parse`.
        """
        return cls.parse(url).with_base(urlsplit(url).path)

    @property
    def authority(self) -> str:
        """Host and port as in the ``Host`` header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.authority}{self.base}"

    def path(self, below: str) -> str:
        """Path and query of a request to a path below the API's base."""
        query = self.query.replace("?", "&", 1) if "?" in below else self.query
        return f"{self.base}{below}{query}"

    def with_base(self, base: str) -> "Target":
        return replace(self, base=base)


def endpoint_at_end(url: str) -> str:
    """The path of an endpoint that a URL ends with, such as ``/chat/completions``; empty if it has none."""
    path = url.strip().partition("?")[0].rstrip("/")
    return next((endpoint for endpoint in _ENDPOINTS if path.endswith(endpoint)), "")


def _split(url: str) -> tuple[SplitResult, int | None]:
    """The URL's parts and port. Error texts contain nothing that may be a key."""
    address, question, query = url.partition("?")
    if (
        "@" in address
        or "#" in url
        or (question and not fullmatch(r"api-version=[\w.-]{1,40}", query, ASCII))
    ):
        raise TargetError(
            f"host {public_url(url)!r}: leave user, query and fragment out of the URL; only "
            "?api-version=DATE may be there; give keys by --api-key-env or --header"
        )
    if search(r"[\s\x00-\x1f\x7f]", url):
        shown = public_url(split(r"[\s\x00-\x1f\x7f]", url)[0])  # a key may stand behind it
        raise TargetError(f"host {shown!r} holds a space or a control character")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as e:
        raise TargetError(f"host {public_url(url)!r}: {url_fault(e)}") from None
    if port == 0:
        raise TargetError(f"host {public_url(url)!r}: port 0 cannot be connected to")
    return parts, port


def _ascii_host(host: str) -> str:
    """Host name in the form for DNS and the ``Host`` header."""
    try:
        return host if ":" in host else host.encode("idna").decode()
    except UnicodeError as e:
        raise TargetError(f"host {host!r} is not a valid DNS name: {e}") from e


# --------------------
# Proxies that the environment names. A load is never sent through one: it would measure the proxy.
#
# So where curl would use a proxy, the target is refused until the environment says that it is reached
# directly.
# --------------------


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
