"""Events of this package, in addition to Locust's."""

from locust.event import EventHook


class LlmEvents:
    """Events fired by this package.

    Attributes:
        llm_request: fired on the worker with ``record=RequestRecord`` for every request that ended,
            cancelled ones included, and for the first try (``resent``) of one that was sent again. Listeners
            run on the event loop: keep them short.
    """

    def __init__(self) -> None:
        self.llm_request = EventHook()


events = LlmEvents()
