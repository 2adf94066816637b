"""When a capture is looked at while connections rest: at every tick, and when the end of a response rings a
bell."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import gevent

from llm_locust.client.packets.capture import Capture
from llm_locust.client.packets.stream import Stream

if TYPE_CHECKING:
    from gevent._types import _IoWatcher, _TimerWatcher

#: Time between two ticks: before ten packets of a stream with one each millisecond are unread. It is longer
#: as long as all connections at rest are patient.
TICK_S, LONG_TICK_S = 0.004, 0.016

#: How much later than a packet that makes a read due the tick of a patient connection may be.
PATIENCE_NS = round((LONG_TICK_S - TICK_S) * 1e9)

#: The bell is heard at most so often.
BELL_S = 0.002

_EV_READ = 1


class Looks:
    """Timer and bell of one capture; both are off while no connection rests.

    Args:
        look: called at a tick and a bell.
        sweep: called at a tick, every ``sweep_s`` or a little more often.
    """

    def __init__(
        self, capture: Capture, look: Callable[[], None], sweep: Callable[[], None], sweep_s: float
    ) -> None:
        self._capture, self._look, self._sweep, self._sweep_s = capture, look, sweep, sweep_s
        self._resting: set[Stream] = set()
        self._hasty: set[Stream] = set()  # those that are not patient
        self._tick_s = self._unswept_s = 0.0
        self._patience_ns = 0  # of patient streams: none while looks are frequent
        self._timer: _TimerWatcher | None = None
        self._bell: _IoWatcher | None = None
        self._bell_again: _TimerWatcher | None = None

    def begin(self, stream: Stream, *, is_patient: bool) -> None:
        """Look for a stream that begins to rest."""
        self._resting.add(stream)
        if not is_patient:
            self._hasty.add(stream)
        if self._bell is None:
            loop = gevent.get_hub().loop
            self._bell_again = loop.timer(BELL_S, BELL_S)
            self._bell = loop.io(self._capture.bell(), _EV_READ)
            self._hear()
        if self._timer is None:
            self._start_ticking()
            self._set_patience()
        elif self._hasty and self._tick_s > TICK_S:
            self._start_ticking()  # what came before its first tick was to be looked at rarely
        stream.patience_ns = self._patience_ns if is_patient else 0

    def end(self, stream: Stream) -> None:
        """Look for it no longer."""
        self._resting.discard(stream)
        self._hasty.discard(stream)
        if not self._resting:
            for watcher in (self._timer, self._bell, self._bell_again):
                if watcher is not None:
                    watcher.close()
            self._timer = self._bell = self._bell_again = None

    def _start_ticking(self) -> None:
        if self._timer is not None:
            self._timer.close()
        self._tick_s = TICK_S if self._hasty else LONG_TICK_S
        self._timer = gevent.get_hub().loop.timer(self._tick_s, self._tick_s)
        self._timer.start(self._on_tick)

    def _set_patience(self) -> None:
        patience_ns = PATIENCE_NS if self._tick_s > TICK_S else 0
        if patience_ns != self._patience_ns:
            self._patience_ns = patience_ns
            for stream in self._resting - self._hasty:
                stream.patience_ns = patience_ns

    def _on_tick(self) -> None:
        self._look()
        self._set_patience()
        self._unswept_s += self._tick_s
        if self._unswept_s <= self._sweep_s - TICK_S:
            return
        self._unswept_s = 0.0
        self._sweep()
        if self._timer is not None and not self._hasty and self._tick_s < LONG_TICK_S:
            self._start_ticking()
            self._set_patience()

    def _hear(self) -> None:
        if self._bell is not None and self._bell_again is not None:
            self._bell_again.stop()
            self._bell.start(self._on_bell)

    def _on_bell(self) -> None:
        if self._bell is not None and self._bell_again is not None:
            self._bell.stop()
            self._bell_again.again(self._hear)  # a timer that is only started again expires at once
            self._capture.silence_bell()  # before the look: what comes after it is heard again
            self._look()
