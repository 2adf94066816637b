"""Messages of ours over Locust's channel: typed where they go out, checked where they come in."""

import logging
from collections.abc import Callable
from typing import TypeVar

import msgspec
from locust.exception import RPCError
from locust.runners import MasterRunner, WorkerRunner

from llm_locust.swarm.channel.dropped import Dropped
from llm_locust.swarm.channel.messages import MessageError, Received, plain, read
from llm_locust.swarm.process.throttle import Throttle

logger = logging.getLogger(__name__)

M = TypeVar("M", bound=msgspec.Struct)

STRANGER = "its sender is no worker of this master"


class WorkerMailbox:
    """A worker's messages to and from its master."""

    def __init__(self, runner: WorkerRunner) -> None:
        self._runner = runner
        self._may_say_dropped = Throttle()

    def send(self, kind: str, message: msgspec.Struct) -> None:
        """Send a message (raises RPCError)."""
        self._runner.send_message(kind, plain(message))

    def listen(self, kind: str, struct: type[M], act: Callable[[M], None], concurrent: bool = False) -> None:
        """Let ``act`` have each message of this kind that fits; others are dropped."""

        def take(msg: Received[object], **_: object) -> None:
            try:
                message = read(msg.data, struct)
            except MessageError as e:
                if self._may_say_dropped():
                    logger.warning("a message of the master was dropped (%s): %s", kind, e)
                return
            act(message)

        self._runner.register_message(kind, take, concurrent=concurrent)


class MasterMailbox:
    """A master's messages to and from its workers.

    Args:
        is_worker: whether a sender has a part in the run, or may get one.
        drop: called with sender, kind and reason of a worker's message that does not fit.
    """

    def __init__(
        self,
        runner: MasterRunner,
        dropped: Dropped,
        is_worker: Callable[[str], bool],
        drop: Callable[[str, str, str], None],
    ) -> None:
        self._runner = runner
        self._dropped = dropped
        self._is_worker = is_worker
        self._drop = drop

    def send(self, kind: str, message: msgspec.Struct, worker: str) -> None:
        """Send a message to one worker; what the channel does not take is lost."""
        try:
            self._runner.send_message(kind, plain(message), worker)
        except RPCError as e:
            logger.warning("worker %s could not be sent %s: %s", worker, kind, e)

    def listen(self, kind: str, struct: type[M], act: Callable[[str, M], None]) -> None:
        """Let ``act`` have each message of this kind that fits, with its sender; others are dropped."""

        def take(msg: Received[object], **_: object) -> None:
            message = self.read(msg.node_id, kind, msg.data, struct)
            if message is not None:
                act(msg.node_id, message)

        self._runner.register_message(kind, take)

    def read(self, worker: str, kind: str, data: object, struct: type[M]) -> M | None:
        """The message, where its sender is known and it fits."""
        if not self._is_worker(worker):
            self._dropped.note(worker, kind, STRANGER)
            return None
        try:
            return read(data, struct)
        except MessageError as e:
            self._drop(worker, kind, str(e))
            return None
