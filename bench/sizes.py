"""Sizes of a run directory and of temporary files, against what a run announces of its growth."""

import time
from pathlib import Path
from threading import Event, Thread
from typing import Self

from rich.console import Console

from llm_locust.store import iter_requests, read_manifest
from llm_locust.store.files import growth_of, size_of, size_text

LOOK_S = 0.25

#: What a run has beside its records: manifest, summaries, two pages with the charts' script, 5 MiB each.
BESIDE_RECORDS = 12 << 20

#: Rolling summaries that the longest span of one has in its temporary file.
SPANS = 2

#: Of temporary files that do not lie beside the run.
MOST_TEMPORARY = 1 << 20


class Sizes:
    """Largest sizes in bytes of a run directory and of that for temporary files, while it is open.

    ``loaded`` is the run directory's until the load's end, as given to :meth:`load_ended`.
    """

    def __init__(self, folder: Path) -> None:
        self.run = self.loaded = self.temporary = 0
        self._grown: list[tuple[float, int]] = []
        self._folder = folder
        self._over = Event()
        self._watch = Thread(target=self._look, daemon=True)

    def __enter__(self) -> Self:
        (self._folder / "tmp").mkdir()
        self._watch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._watch.join()

    def load_ended(self, at_s: float) -> None:
        """The load ended at this time of the monotonic clock, now or before."""
        self.loaded = max((size for grown_s, size in self._grown if grown_s <= at_s), default=0)

    def _look(self) -> None:
        while not self._over.wait(LOOK_S):
            if (size := size_of(self._folder / "run")) > self.run:
                self.run = size
                self._grown.append((time.monotonic(), size))
            self.temporary = max(self.temporary, size_of(self._folder / "tmp"))


def check_sizes(
    console: Console, folder: Path, sizes: Sizes, seconds: float, rolling_s: float | None
) -> bool:
    """Print what was announced and what it took; return whether it stayed within that.

    Args:
        seconds: of load.
        rolling_s: time between two rolling summaries; None if there are none.
    """
    workers = read_manifest(folder / "run").workers
    rows = arrivals = 0
    for batch in iter_requests(folder / "run"):
        rows += len(batch)
        arrivals += len(batch.arrivals().values)
    announced = growth_of(rows, arrivals / max(1, rows), sum(w.batches for w in workers))
    loaded = announced.frames + announced.kept * min(1.0, SPANS * (rolling_s or 0.0) / seconds)
    console.print(
        f"{rows:,} records with {arrivals / max(1, rows):.0f} token arrivals each; the run directory had "
        f"{size_text(sizes.loaded)} at most under load ({size_text(loaded)} announced) and "
        f"{size_text(sizes.run)} at its end ({size_text(announced.peak)}); "
        f"{size_text(sizes.temporary)} of temporary files elsewhere",
        highlight=False,
    )
    fits = sizes.loaded <= loaded + BESIDE_RECORDS and sizes.run <= announced.peak + BESIDE_RECORDS
    return fits and sizes.temporary <= MOST_TEMPORARY
