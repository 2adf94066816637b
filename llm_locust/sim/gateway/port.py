"""One listening port with its application, which can be closed and reopened."""

import asyncio
import os
import socket

from aiohttp import web

from llm_locust.sim.answers.stream import reset_connection

_BACKLOG = 4_096
_SHUTDOWN_TIMEOUT_S = 0.5


class PortError(OSError):
    """A port that cannot be listened on; the text says which, why, and what to do."""


def listen(host: str, port: int) -> socket.socket:
    """Open a listening socket.

    Raises:
        PortError: a port is busy or not allowed.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except (OSError, OverflowError) as e:
        reason = os.strerror(e.errno) if isinstance(e, OSError) and e.errno and e.errno > 0 else str(e)
        raise PortError(
            f"cannot listen on {host}:{port}: {reason}; choose another port, or 0 for a free one"
        ) from e


class Port:
    """Serves an application on a socket. Closed and opened again, it has the same address."""

    def __init__(self, app: web.Application, sock: socket.socket, keep_alive_s: float) -> None:
        self._runner = web.AppRunner(
            app,
            access_log=None,
            handler_cancellation=True,
            keepalive_timeout=keep_alive_s,
            shutdown_timeout=_SHUTDOWN_TIMEOUT_S,
        )
        self._socket: socket.socket | None = sock
        self._address: tuple[str, int] = sock.getsockname()[:2]
        self._site: web.SockSite | None = None

    @property
    def url(self) -> str:
        """Base URL, with ``/v1``."""
        host, port = self._address
        return f"http://[{host}]:{port}/v1" if ":" in host else f"http://{host}:{port}/v1"

    async def open(self) -> None:
        """Listen, for the first time or again.

        Raises:
            PortError: another process has taken the port meanwhile.
        """
        if self._runner.server is None:
            await self._runner.setup()
        sock, self._socket = self._socket or listen(*self._address), None
        self._site = web.SockSite(self._runner, sock, backlog=_BACKLOG)
        await self._site.start()

    async def close(self) -> None:
        """Refuse new connections; open ones stay open."""
        site, self._site = self._site, None
        if site is not None:
            await site.stop()

    def reset_connections(self) -> None:
        """Close every open connection at once with an RST, as the kernel does for a process that is gone."""
        server = self._runner.server
        for connection in server.connections if server is not None else ():
            if isinstance(connection.transport, asyncio.Transport):
                reset_connection(connection.transport)

    async def cleanup(self) -> None:
        """End the service for good, or close the socket of one that was never opened."""
        if self._socket is not None:
            self._socket.close()
        await self._runner.cleanup()
