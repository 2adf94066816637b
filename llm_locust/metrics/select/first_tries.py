"""How many sendings were first tries: they broke before they were worked on, and were sent again."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from llm_locust.core.batch import Labels
from llm_locust.metrics.columns import Mask, Times
from llm_locust.metrics.select.selection import SelectedRequests
from llm_locust.metrics.window import Window

Label = Literal["name", "slo_class"]

_COLUMNS = ("scheduled_ns", "sent_ns", "ended_ns", "name", "class")


@dataclass(frozen=True, slots=True)
class FirstTries:
    """The first tries of a run. ``inside`` marks those of requests that were scheduled in the window."""

    inside: Mask
    name: Labels
    slo_class: Labels

    @classmethod
    def of(cls, requests: SelectedRequests, window: Window, origin_ns: int) -> "FirstTries":
        rows = requests.first_tries(_COLUMNS)
        inside = window.scheduled(Times.of(rows, origin_ns))
        return cls(inside, rows.labels("name"), rows.labels("class"))

    def count(self) -> int:
        """Those of the window."""
        return int(self.inside.sum())

    def among(self, label: Label, text: str) -> int:
        """Those of the window with this name or class."""
        labels: Labels = getattr(self, label)
        if text not in labels.names:
            return 0
        return int((self.inside & np.equal(labels.codes, labels.names.index(text))).sum())
