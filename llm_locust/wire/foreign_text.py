"""Text that others send, made fit for records, tables and lines, without the keys that it may quote."""

import re
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qsl, quote

from llm_locust.wire.payload import well_formed

# --- Names that a server gives to itself, and other foreign text, made fit for records, tables and lines


#: Most characters of a name.
MAX_NAME_CHARS = 200

#: Of a line longer than this the middle is left out.
_MAX_LINE_CHARS = 2_000
_MAX_LINE_END_CHARS = 500

#: Control characters, and those that turn the direction of the text around them.
CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")


def clean_name(text: str) -> str:
    """A name without control characters, each of which becomes U+FFFD, of at most 200 characters."""
    text = well_formed(text[: MAX_NAME_CHARS + 1])
    if not text.isprintable():
        text = CONTROL.sub("\ufffd", text)
    return text if len(text) <= MAX_NAME_CHARS else text[: MAX_NAME_CHARS - 1] + "…"


def one_line(text: str) -> str:
    """Text with foreign parts as one printable line: other characters are escaped, its length is bounded."""
    if not text.isprintable():
        text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    if len(text) > _MAX_LINE_CHARS:
        text = f"{text[: _MAX_LINE_CHARS - _MAX_LINE_END_CHARS - 1]}…{text[-_MAX_LINE_END_CHARS:]}"
    return text


# --- Keys in texts: blanked out of what others say, refused where a person writes them into an address


#: So much of a secret's start is as good as the secret: an excerpt may have cut off the rest.
_START = 8

#: Names such as a model's or a replica's keep what is shorter than this: a header's value may be ``stop``.
_LEAST_IN_A_NAME = 8

_BLANK = "***"

#: Settings of a URL that hold keys, by the end of their names: ``token``, ``api_key``, ``X-Amz-Signature``.
KEY_NAME = re.compile(
    r"(?:token|secret|password|passwd|signature|credentials?|(?:api|access|auth|secret|account|private)[^a-z]?key"
    r"|(?:^|[^a-z])(?:key|pwd|pass|auth|authorization|sig|jwt|bearer|sas))$",
    re.IGNORECASE,
)

_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_MOST_SHOWN = 60

#: What a variable of the environment is called, as a person would write it.
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_KEY_LIKE = re.compile(r"(?=.*[a-z])(?=.*[0-9]).{16,}")


def blanked(text: str, secrets: Iterable[str]) -> str:
    """``text`` with asterisks for each secret, and for what an excerpt has left of its start.

    A secret is known as it stands, percent-encoded, and as the plain password of HTTP's basic authentication.
    """
    for secret in secrets:
        for spelling in _spellings(secret):
            text = _without(text, spelling)
    return text


def blanked_name(text: str, secrets: Iterable[str]) -> str:
    """A name that a server gave, with asterisks for each secret of at least eight characters.

    Unlike :func:`blanked` it keeps words that are only like a secret's start, so that two names stay two.
    """
    for secret in secrets:
        for spelling in _spellings(secret):
            if len(spelling) >= _LEAST_IN_A_NAME and spelling[:_START] in text:
                text = text.replace(spelling, _BLANK)
                text = _without_cut_end(text, spelling)
    return text


def url_secret(url: str) -> str | None:
    """What of a URL may be a key, in words that do not show it; None where nothing is.

    A user name or password before an ``@``, or a setting behind ``?`` or ``#`` whose name is that of a key.
    """
    _, rest = _without_scheme(url)
    place, *settings = re.split(r"[?#]", rest)
    host = place.partition("/")[0]
    port = host.partition(":")[2]
    # A password may hold a slash or a question mark, and so end what looks like the host.
    if "@" in host or (host.count(":") == 1 and "[" not in host and not port.isdecimal()):
        return "a user name or a password"
    for setting in settings:
        for name, _ in parse_qsl(setting.replace(";", "&"), keep_blank_values=True):
            if KEY_NAME.search(name):
                return f"the setting {name[:40]!r}"
    return None


def is_key_name(name: str) -> bool:
    """Whether a header, setting or field of this name holds a key, such as ``Authorization``."""
    return bool(KEY_NAME.search(name))


def shown_text(text: str) -> str:
    """A text for an error, quoted: its start, up to the first name of a key, behind which one may stand."""
    end = min(_key_end(text), _MOST_SHOWN)
    return repr(text if len(text) <= end else text[:end] + "…")


def shown_before(text: str, place: int) -> str:
    """What a place of it is before, for an error; nothing where a key may stand there."""
    if place >= len(text):
        return ", at its end"
    return "" if place >= _key_end(text) else f", before {text[place : min(place + 20, _key_end(text))]!r}"


def _key_end(text: str) -> int:
    """Where the first name of a key ends; the length without one."""
    names = (word.end() for word in _WORD.finditer(text) if is_key_name(word[0]))
    return next(names, len(text))


def key_texts(value: object) -> Iterator[str]:
    """Texts in a JSON value that stand under the name of a key, such as ``api_key``, at any depth.

    A text of under eight characters is none.
    """
    for name, item in _fields(value):
        if _is_key(name, item):
            yield item
        else:
            yield from key_texts(item)


def without_keys(value: Any) -> Any:
    """The JSON value with asterisks for each of its :func:`key_texts`."""
    if isinstance(value, dict):
        return {n: _BLANK if _is_key(n, item) else without_keys(item) for n, item in value.items()}
    return [without_keys(item) for item in value] if isinstance(value, list) else value


def public_url(url: str) -> str:
    """A URL for an error text: without user name, password, settings and fragment."""
    scheme, rest = _without_scheme(url)
    place = re.split(r"[?#]", rest)[0]
    if "@" not in place and url_secret(place):
        place = ""
    return scheme + place.rpartition("@")[2]


def url_fault(error: ValueError) -> str:
    """What is wrong with a URL, by urllib's error, whose own text may quote a key."""
    text = str(error)
    if text.startswith("Port"):
        return "Port out of range 0-65535" if "range" in text else "Port is no number"
    return "Invalid IPv6 URL" if "IPv6" in text else "it is no valid URL"


def is_variable(name: str) -> bool:
    """Whether an environment variable can have this name."""
    return name.isascii() and name.isidentifier()


def shown_variable(name: str) -> str:
    """The name of an environment variable for an error text: not what is rather the key itself."""
    return repr(name) if _VARIABLE.fullmatch(name) and not _KEY_LIKE.fullmatch(name) else "that it names"


def _fields(value: object) -> Iterable[tuple[str, Any]]:
    if isinstance(value, dict):
        return value.items()
    return (("", item) for item in value) if isinstance(value, list) else ()


def _is_key(name: object, value: object) -> bool:
    return isinstance(value, str) and len(value) >= _LEAST_IN_A_NAME and is_key_name(str(name))


def _without_scheme(url: str) -> tuple[str, str]:
    scheme, mark, rest = url.strip().partition("://")
    return (scheme + mark, rest) if mark else ("", scheme)


@lru_cache(maxsize=1024)
def _spellings(secret: str) -> Sequence[str]:
    spellings = [secret, quote(secret, safe="")]
    try:
        user, colon, password = b64decode(secret, validate=True).decode().partition(":")
    except (Base64Error, UnicodeDecodeError, ValueError):
        pass
    else:
        if colon and user.isprintable() and password.isprintable() and len(password) >= 4:
            spellings.append(password)
    return tuple(dict.fromkeys(s for s in spellings if s))


def _without(text: str, secret: str) -> str:
    start, begin = secret[:_START], 0
    while (at := text.find(start, begin)) >= 0:
        end = at + next(n for n in range(len(secret), 0, -1) if text.startswith(secret[:n], at))
        text, begin = f"{text[:at]}{_BLANK}{text[end:]}", at + len(_BLANK)
    return text


def _without_cut_end(text: str, secret: str) -> str:
    """Without a secret's start at the end of the text, where a bound may have cut off the rest."""
    for n in range(min(len(secret) - 1, len(text)), _START - 1, -1):
        if text.endswith(secret[:n]):
            return text[:-n] + _BLANK
    return text
