"""Roles of servers in disaggregated serving, and how they are written before a URL."""

import re

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
