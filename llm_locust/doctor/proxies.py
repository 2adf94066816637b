"""Proxies by their response headers, and their settings that let a stream through."""

from collections.abc import Mapping

from llm_locust.report.text import short
from llm_locust.wire.names import clean_name

#: Word in ``Server`` or ``Via``, or start of a header's name -> name of the proxy, and its settings.
_SETTINGS = {
    "nginx": "nginx: `proxy_buffering off;`, `proxy_http_version 1.1;`, no `gzip` for text/event-stream",
    "haproxy": "haproxy: `option http-no-delay`",
    "envoy": "Envoy: remove filters that buffer or compress the response",
    "litellm": "LiteLLM: watch its CPU; at its limit it merges events",
    "cloudflare": "Cloudflare: `Cache-Control: no-transform` from the server, no compression",
}
_NAMED_BY = {"x-envoy-": "envoy", "x-litellm-": "litellm", "cf-ray": "cloudflare"}

#: haproxy names itself nowhere, and other proxies may be told not to.
_UNKNOWN = ("nginx", "haproxy")


def proxy_of(headers: Mapping[bytes, bytes]) -> str | None:
    """The proxy that response headers name, as a key of the settings; None without one."""
    named = b" ".join(headers.get(name, b"") for name in (b"server", b"via")).decode("latin-1").lower()
    for word in _SETTINGS:
        if word in named:
            return word
    names = [name.decode("latin-1") for name in headers]
    return next((p for start, p in _NAMED_BY.items() if any(n.startswith(start) for n in names)), None)


def unbuffering(headers: Mapping[bytes, bytes]) -> str:
    """Advice for a stream that was buffered on the way."""
    proxy = proxy_of(headers)
    settings = "; ".join(_SETTINGS[name] for name in ((proxy,) if proxy else _UNKNOWN))
    return f"let the stream through: {settings} (docs/balancers.md)"


def sender(headers: Mapping[bytes, bytes]) -> str:
    """What the ``Server`` header says, for a line of text; empty without one."""
    return short(clean_name(headers.get(b"server", b"").decode("latin-1")), 40)
