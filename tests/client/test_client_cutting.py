"""The end of a process's part in a run, which a signal and the master may ask for at once."""

import gevent
import pytest

from llm_locust.client.call import Canceller


class Cancellable:
    """Calls that are cut in turns of the loop of their own, as many busy ones are."""

    def __init__(self, n: int) -> None:
        self.unanswered = n

    def abandon_calls(self) -> int:
        cut = 0
        while self.unanswered:
            self.unanswered -= 1
            cut += 1
            gevent.sleep(0)
        gevent.sleep(0)
        return cut


@pytest.mark.parametrize("later", range(9))
def test_requests_cut_are_all_counted_whoever_asks_for_the_end_first(later: int) -> None:
    """Of two counts made at once the later one replaced the other, and had only what that one had left."""
    cutting, seen = Canceller(Cancellable(6)), list[int | None]()

    def end(turns: int) -> None:
        for _ in range(turns):
            gevent.sleep(0)
        cutting.end_drain()
        seen.append(cutting.count)
        cutting.cut_rest()
        seen.append(cutting.count)

    gevent.joinall([gevent.spawn(end, 0), gevent.spawn(end, later)], raise_error=True)
    assert seen == [6, 6, 6, 6]
