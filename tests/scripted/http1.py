"""Request bytes in, whole requests out."""

from dataclasses import dataclass, field

import httptools


@dataclass(slots=True)
class Message:
    """One request as it was sent."""

    method: str = ""
    path: str = ""
    headers: list[tuple[str, str]] = field(default_factory=list)
    body: bytearray = field(default_factory=bytearray)
    keep_alive: bool = True

    def header(self, name: str) -> str | None:
        """The first header of that name, whatever its case."""
        return next((v for k, v in self.headers if k.lower() == name.lower()), None)


class RequestReader:
    """Feeds on the bytes of one connection, split anywhere."""

    def __init__(self) -> None:
        self._parser = httptools.HttpRequestParser(self)
        self._message = Message()
        self._complete: list[Message] = []

    def feed(self, data: bytes) -> list[Message]:
        """The requests that these bytes completed.

        Raises:
            httptools.HttpParserError: this is not HTTP/1.1.
        """
        self._parser.feed_data(data)
        complete, self._complete = self._complete, []
        return complete

    # httptools calls these by name.

    def on_message_begin(self) -> None:
        self._message = Message()

    def on_url(self, url: bytes) -> None:
        self._message.path += url.decode("latin-1")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._message.headers.append((name.decode("latin-1"), value.decode("latin-1")))

    def on_body(self, body: bytes) -> None:
        self._message.body += body

    def on_message_complete(self) -> None:
        self._message.method = self._parser.get_method().decode()
        self._message.keep_alive = self._parser.should_keep_alive()
        self._complete.append(self._message)
