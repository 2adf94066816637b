"""Prompts made before they are asked for, in another thread.

Making a prompt of 4,000 tokens that a tokenizer has counted takes about 8 ms: too long for the
thread in which an event loop reads streams. The tokenizer lets go of the GIL while it counts,
so a second thread can do it meanwhile; what is left of Python there (joining words,
the chat template) holds the loop up by less than a millisecond.

The executor is whoever's: ``concurrent.futures.ThreadPoolExecutor`` anywhere, and under gevent its own
``gevent.threadpool.ThreadPoolExecutor``, whose threads are real ones where ``threading`` is patched,
and whose futures are waited for without holding up the loop.
"""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future

from llm_locust.workload.text.prompts import Prompt

#: Makes one prompt, the same whenever and wherever it is called.
Order = Callable[[], Prompt]


class Ahead(Iterator[Prompt]):
    """The prompts of ``orders``, in their order, up to ``depth`` of them made ahead.

    Orders are drawn here, in the caller's thread, and only carried out in the executor's: what
    comes does not depend on how many threads it has, on ``depth``, or on who is faster. A prompt that
    is not ready yet is waited for; an error in making one is raised when its turn comes.

    The first prompts are made when the first one is asked for, so that a user that never asks costs
    nothing. For each iterator ``depth`` prompts are held.
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
