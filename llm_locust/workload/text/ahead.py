"""Prompts made ahead of their use, in another thread.

Making a prompt of 4,000 tokens with a tokenizer takes about 8 ms: too long for the thread in which an event
loop reads streams. The tokenizer releases the GIL while it counts, so that a second thread can do it
meanwhile. The remaining Python code there (joining words, the chat template) blocks the loop for less than a
millisecond.

Any executor works: ``concurrent.futures.ThreadPoolExecutor``, or under gevent
``gevent.threadpool.ThreadPoolExecutor``, whose threads are real ones even if ``threading`` is patched, and
whose futures can be awaited without blocking the loop.
"""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future

from llm_locust.workload.text.prompts import Prompt

#: Makes one prompt, the same whenever and wherever it is called.
Order = Callable[[], Prompt]


class Ahead(Iterator[Prompt]):
    """Prompts of ``orders``, in their order, up to ``depth`` of them made ahead.

    Orders are drawn here, in the caller's thread, and only carried out in the executor's: the result does not
    depend on the number of threads, on ``depth``, or on timing. A prompt that is not ready is waited for; an
    error in making one is raised at its turn.

    The first prompts are made when the first one is requested, so that a user that never asks costs nothing.
    Each iterator holds ``depth`` prompts.
    """

    def __init__(self, orders: Iterator[Order], executor: Executor, depth: int = 1) -> None:
        if depth < 1:
            raise ValueError(f"depth {depth}: at least one prompt must be made ahead")
        self._orders = orders
        self._executor = executor
        self._depth = depth
        self._coming: deque[Future[Prompt]] = deque()

    def __next__(self) -> Prompt:
        # The one that is waited for, and those that are made during its request.
        while len(self._coming) <= self._depth and (order := next(self._orders, None)) is not None:
            self._coming.append(self._executor.submit(order))
        if not self._coming:
            raise StopIteration
        return self._coming.popleft().result()
