"""Dropped messages: counted, and logged at a bounded rate."""

import logging

from llm_locust.swarm.process.throttle import Throttle

logger = logging.getLogger(__name__)

#: Most senders that are counted separately; the others are counted as :data:`OTHERS`.
MOST_SENDERS = 100
OTHERS = "others"

#: Most pairs of sender and kind whose first message is logged at once; later ones wait for the throttle.
MOST_NAMED = 20

_LONGEST_NAME = 100


class DroppedMessages:
    """Counts of messages that were dropped in a run.

    Attributes:
        by_sender: sender -> kind of message -> how many.
    """

    def __init__(self) -> None:
        self._may_say = Throttle()
        self.by_sender: dict[str, dict[str, int]] = {}

    def begin(self) -> None:
        """Start a new run: reset all counts to 0."""
        self.by_sender = {}

    def note(self, sender: str, kind: str, why: str) -> None:
        """Count one message.

        Args:
            kind: a name from a fixed set, never text from the sender.
        """
        name = printable(sender)
        if name not in self.by_sender and len(self.by_sender) >= MOST_SENDERS:
            name = OTHERS
        kinds = self.by_sender.setdefault(name, {})
        kinds[kind] = kinds.get(kind, 0) + 1
        pairs = sum(map(len, self.by_sender.values()))
        if (kinds[kind] == 1 and pairs <= MOST_NAMED) or self._may_say():
            logger.warning("a message from %s was dropped (%s, %d so far): %s", name, kind, self.total, why)

    @property
    def total(self) -> int:
        return sum(count for kinds in self.by_sender.values() for count in kinds.values())


def printable(text: str, longest: int = _LONGEST_NAME) -> str:
    """Untrusted text as one bounded line."""
    shown = "".join(c if c.isprintable() else "?" for c in text[: longest + 1])
    return shown if len(shown) <= longest else shown[: longest - 1] + "…"
