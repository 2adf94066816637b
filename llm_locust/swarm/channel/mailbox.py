"""This package's messages over Locust's channel: typed when sent, checked when received."""

import logging
from collections.abc import Callable
from typing import TypeVar

import msgspec
from locust.exception import RPCError
from locust.runners import MasterRunner, WorkerRunner

from llm_locust.swarm.channel.dropped import DroppedMessages
from llm_locust.swarm.channel.messages import MessageError, Received, plain, read
from llm_locust.swarm.process.throttle import Throttle

logger = logging.getLogger(__name__)

M = TypeVar("M", bound=msgspec.Struct)

STRANGER = "its sender is not a worker of this master"


class WorkerMailbox:
    """Messages between a worker and its master, at the worker."""

    def __init__(self, runner: WorkerRunner) -> None:
        self._runner = runner
        self._may_say_dropped = Throttle()

    def send(self, kind: str, message: msgspec.Struct) -> None:
        """Send a message (raises RPCError)."""
        self._runner.send_message(kind, plain(message))

    def listen(self, kind: str, struct: type[M], act: Callable[[M], None], concurrent: bool = False) -> None:
        """Call ``act`` with each valid message of this kind; drop the others."""

        def take(msg: Received[object], **_: object) -> None:
            try:
                message = read(msg.data, struct)
            except MessageError as e:
                if self._may_say_dropped():
                    logger.warning("a message from the master was dropped (%s): %s", kind, e)
                return
            act(message)

        self._runner.register_message(kind, take, concurrent=concurrent)


class MasterMailbox:
    """Messages between a master and its workers, at the master.

    Args:
        is_worker: whether a sender takes part in the run, or may be added to it.
        drop: called with sender, kind and reason of an invalid message.
    """

    def __init__(
        self,
        runner: MasterRunner,
        dropped: DroppedMessages,
        is_worker: Callable[[str], bool],
        drop: Callable[[str, str, str], None],
    ) -> None:
        self._runner = runner
        self._dropped = dropped
        self._is_worker = is_worker
        self._drop = drop

    def send(self, kind: str, message: msgspec.Struct, worker: str) -> None:
        """Send a message to one worker; it is lost if the channel does not accept it."""
        try:
            self._runner.send_message(kind, plain(message), worker)
        except RPCError as e:
            logger.warning("could not send worker %s %s: %s", worker, kind, e)

    def listen(self, kind: str, struct: type[M], act: Callable[[str, M], None]) -> None:
        """Call ``act`` with sender and message for each valid message of this kind; drop the others."""

        def take(msg: Received[object], **_: object) -> None:
            message = self.read(msg.node_id, kind, msg.data, struct)
            if message is not None:
                act(msg.node_id, message)

        self._runner.register_message(kind, take)

    def read(self, worker: str, kind: str, data: object, struct: type[M]) -> M | None:
        """Return the message if its sender is known and it is valid, else None."""
        if not self._is_worker(worker):
            self._dropped.note(worker, kind, STRANGER)
            return None
        try:
            return read(data, struct)
        except MessageError as e:
            self._drop(worker, kind, str(e))
            return None
