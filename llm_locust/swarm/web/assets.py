"""Scripts and styles of the pages, and plotly's, from the packages; one address for each content."""

import gzip
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from importlib import resources

from jinja2 import Environment, PackageLoader, StrictUndefined

from llm_locust.report.html.shell import packed_plotly

_PACKAGE = "llm_locust.swarm.web"

_CSS, _SCRIPT = "text/css; charset=utf-8", "text/javascript; charset=utf-8"
_TYPES = {
    **dict.fromkeys(("house.css", "live.css"), _CSS),
    **dict.fromkeys(("live.js", "theme.js", "tabs.js", "plotly.js"), _SCRIPT),
}


@dataclass(frozen=True, slots=True)
class Asset:
    """``tag`` identifies the content: a browser may cache the answer of an address with it forever."""

    content_type: str
    packed: bytes  # gzip
    tag: str

    @property
    def plain(self) -> bytes:
        return gzip.decompress(self.packed)


@cache
def asset(name: str) -> Asset | None:
    """Return a file by its name; None if there is none."""
    if name not in _TYPES:
        return None
    packed = packed_plotly() if name == "plotly.js" else gzip.compress(_content(name), mtime=0)
    return Asset(_TYPES[name], packed, tag=blake2b(packed, digest_size=8).hexdigest())


def _content(name: str) -> bytes:
    if name == "house.css":  # the reports' own: all pages look alike
        return (resources.files("llm_locust.report.html") / "templates" / "style.css").read_bytes()
    return (resources.files(_PACKAGE) / "templates" / name).read_bytes()


@cache
def templates() -> Environment:
    return Environment(
        loader=PackageLoader(_PACKAGE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
