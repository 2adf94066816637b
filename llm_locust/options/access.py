"""Options that give access to the server: keys, headers, certificates."""

import argparse
from collections.abc import Iterable, Mapping
from pathlib import Path
from re import fullmatch

from llm_locust.options.option import Group, option, parse_header
from llm_locust.wire.dialects.dialect import Dialect
from llm_locust.wire.foreign_text import is_key_name, is_variable, public_url, shown_variable
from llm_locust.wire.headers import header_template, secret_texts

#: Where SDKs and their users have the key.
DEFAULT_KEY_ENV = "OPENAI_API_KEY"


def headers_from(pairs: Iterable[tuple[str, str]], environ: Mapping[str, str]) -> dict[str, str]:
    """Headers whose values are in environment variables; raises ValueError, which never shows a value."""
    headers = {}
    for name, variable in pairs:
        value = environ.get(variable, "").strip()
        if not value:
            raise ValueError(f"the environment variable {shown_variable(variable)} is not set, or empty")
        header_template(name, value)
        headers[name] = value
    return headers


def parse_header_env(text: str) -> tuple[str, str]:
    """``Name=VARIABLE`` as a pair; raises ValueError, which does not show what may be a secret."""
    name, equals, variable = text.partition("=")
    if not equals or not is_variable(variable):
        raise ValueError("write NAME=VARIABLE, a header and the environment variable that holds its value")
    header_template(name, "")
    return name, variable


def parse_host_name(text: str) -> str:
    """A host name of a certificate (raises ValueError)."""
    name = text.strip().rstrip(".")
    if not fullmatch(r"[A-Za-z0-9*]([A-Za-z0-9_.:-]{0,252})", name):
        raise ValueError(f"{public_url(text)[:60]!r} is no host name: write one such as llm.example.org")
    return name


class AccessSettings(Group, frozen=True, kw_only=True):
    """How the server lets requests in. The values of ``header`` may be secrets."""

    api_key_env: str | None = option(
        "--api-key-env",
        "environment variable that holds the API key (default OPENAI_API_KEY, if it is set and no header "
        "has a key; empty: none)",
        metavar="NAME",
        is_load=False,
    )
    header: tuple[tuple[str, str], ...] = option(
        "--header",
        "request header (repeatable)",
        parse_header,
        "K=V",
        kind="list",
        secret=True,
        record=None,
    )
    header_env: tuple[tuple[str, str], ...] = option(
        "--header-env",
        "request header whose value each process reads from an environment variable (repeatable)",
        parse_header_env,
        "K=NAME",
        kind="list",
        record=None,
    )
    ca_cert: Path | None = option(
        "--ca-cert",
        "CA certificates (PEM) to trust instead of the system's",
        metavar="FILE",
        kind="path",
        is_load=False,
        parse=Path,
    )
    client_cert: Path | None = option(
        "--client-cert",
        "client certificate and key in one PEM file",
        metavar="FILE",
        kind="path",
        is_load=False,
        parse=Path,
    )
    tls_name: str | None = option(
        "--tls-name",
        "host name that the server's certificate has, where the URL has another one, or an address",
        parse_host_name,
        "NAME",
        is_load=False,
    )
    insecure: bool = option(
        "--insecure",
        "accept any certificate of the server: who is on the way can read the API key; the report says so",
        kind="truth",
        is_load=False,
    )

    def headers(self, environ: Mapping[str, str]) -> dict[str, str]:
        """The values of ``--header``, and of ``--header-env`` from ``environ``; of equal names the latter's.

        Raises:
            ValueError: one that cannot be used. It names the option and the header, and never shows a value.
        """
        try:
            return dict(self.header) | headers_from(self.header_env, environ)
        except ValueError as e:
            raise ValueError(f"--header-env: {e}") from e

    def api_key(self, environ: Mapping[str, str]) -> str | None:
        """The key in the variable of ``--api-key-env``; raises ValueError, which names the option."""
        name = self.api_key_env
        if not name:
            return None
        key = environ.get(name, "").strip()
        if not key:
            raise ValueError(
                f"--api-key-env: the environment variable {shown_variable(name)} is not set, or empty"
            )
        if len(key) > 1 and key[0] == key[-1] and key[0] in "\"'":  # files of variables read as they stand
            raise ValueError(f"--api-key-env: the value of {name!r} stands in quotes: leave them out")
        if not all((" " <= c <= "\xff" and c != "\x7f") or c == "\t" for c in key):
            raise ValueError(
                f"--api-key-env: the value of {name!r} holds a line break or a character that no header can "
                "hold"
            )
        return key


def access_headers(
    api_key: str | None, headers: Mapping[str, str], dialects: Iterable[Dialect], *, versioned: bool = False
) -> dict[str, str]:
    """Headers of every request: the API key as a bearer token, those of the dialects, the user's own.

    Args:
        versioned: the target has an ``api-version``; it takes the key in ``api-key`` too, as Azure does.
    """
    key = None if api_key is None else api_key.replace("{", "{{")  # a template of exactly this text
    ours = {} if key is None else {"Authorization": f"Bearer {key}"}
    if versioned and key is not None:
        ours["api-key"] = key
    for dialect in dialects:
        ours |= dialect.headers
        if dialect.key_header and key is not None:
            ours[dialect.key_header] = key
    return {**ours, **headers}


def access_secrets(api_key: str | None, headers: Mapping[str, str]) -> tuple[str, ...]:
    """Texts of the API key and the headers that must not stand in any file, log or page."""
    return (*((api_key,) if api_key and len(api_key) >= 4 else ()), *secret_texts(headers))


def take_default_key(options: argparse.Namespace, environ: Mapping[str, str]) -> bool:
    """Take ``OPENAI_API_KEY`` as ``--api-key-env`` if it is set and nothing is said of a key; return whether.

    An empty ``--api-key-env`` says that there is none. It is for the process that starts a run: its workers
    get the name with the options.
    """
    given = AccessSettings.of(options)
    names = [name for name, _ in (*given.header, *given.header_env)]
    said = getattr(options, "api_key_env", None) is not None or any(map(is_key_name, names))
    if said or not environ.get(DEFAULT_KEY_ENV, "").strip():
        return False
    options.api_key_env = DEFAULT_KEY_ENV
    return True
