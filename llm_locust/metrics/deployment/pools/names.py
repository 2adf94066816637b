"""Roles of servers in disaggregated serving, and how they are written before a URL."""

import re

PREFILL, DECODE = "prefill", "decode"
ROLES = (PREFILL, DECODE)

_ROLE = re.compile(rf"\s*({'|'.join(ROLES)})=")


def split_role(url: str) -> tuple[str | None, str]:
    """The role before a URL (``prefill=URL``), None without one, and the URL."""
    found = _ROLE.match(url)
    return (found[1], url[found.end() :].strip()) if found else (None, url.strip())
