"""Whether the requests of a stage had the lengths that its sweep asks for."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from llm_locust.core.manifest import StageFacts
from llm_locust.core.record import LengthPair
from llm_locust.metrics.columns import Floats
from llm_locust.metrics.measured import Measured
from llm_locust.metrics.stats.percentiles import ordered, percentile

#: A request has the asked lengths if each is off by no more than this share of it, or by so many tokens.
TOLERANCE, LEAST_INPUT, LEAST_OUTPUT = 0.05, 8, 1

#: Share of the ok requests above which a stage is one of other lengths.
MOST_OTHER = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthsSeen:
    """Lengths of the ok requests of a stage, in tokens. None: not known of any.

    ``other`` requests were asked for other lengths, or had other ones, ``short`` of them a shorter answer; of
    ``uncounted`` the server did not count the prompt or the answer, and what it did count was right.
    """

    asked: LengthPair
    ok: int
    input_p50: float | None
    output_p50: float | None
    other: int
    short: int
    uncounted: int

    @classmethod
    def unknown(cls, asked: LengthPair) -> "LengthsSeen":
        """Those of a stage without a measured part."""
        return cls(asked=asked, ok=0, input_p50=None, output_p50=None, other=0, short=0, uncounted=0)

    @classmethod
    def of(cls, m: Measured, stage: StageFacts) -> "LengthsSeen | None":
        """Those of the requests in the window of ``m``; None where the sweep does not set lengths."""
        if stage.lengths is None:
            return None
        rows, asked = m.population(np.arange(len(m.c))).ok, stage.lengths
        inputs, outputs = m.c.input_tokens[rows], m.c.output_tokens[rows]
        answers = _is_off(outputs, asked.output_tokens, LEAST_OUTPUT)
        other = (
            (m.c.asked_input_tokens[rows] != asked.input_tokens)
            | (m.c.asked_output_tokens[rows] != asked.output_tokens)
            | _is_off(inputs, asked.input_tokens, LEAST_INPUT)
            | answers
        )
        return cls(
            asked=asked,
            ok=len(rows),
            input_p50=_median(inputs),
            output_p50=_median(outputs),
            other=int(other.sum()),
            short=int((answers & (outputs < asked.output_tokens)).sum()),
            uncounted=int((~other & (np.isnan(inputs) | np.isnan(outputs))).sum()),
        )

    @property
    def is_other(self) -> bool | None:
        """Whether too many requests had other lengths for its figures to be of those asked for.

        None where that hangs on requests whose tokens were not counted, and without an ok request.
        """
        most = MOST_OTHER * self.ok
        if self.other > most:
            return True
        return None if not self.ok or self.other + self.uncounted > most else False

    @property
    def reason(self) -> str:
        """Why the stage is not a result; empty where it is of the asked lengths."""
        if not self.is_other:
            return ""
        had = (
            f"other lengths than {self.asked}: {self.other:,} of {self.ok:,} ok requests were off by more "
            f"than {TOLERANCE:.0%}; the median was {_shown(self.input_p50)} input and "
            f"{_shown(self.output_p50)} output tokens"
        )
        hints = []
        if self.input_p50 is not None and _is_off(self.input_p50, self.asked.input_tokens, LEAST_INPUT):
            hints.append("give --tokenizer for exact prompts, or a longer --warmup")
        if self.short:
            field = """--body '{"ignore_eos": true}'"""
            hints.append(f"{self.short:,} answers were shorter: give {field} where the server knows it")
        return "; ".join((had, *hints))

    @property
    def note(self) -> str:
        """What is not known of them; empty where all were counted."""
        if not self.uncounted:
            return ""
        return (
            f"of {self.uncounted:,} of {self.ok:,} ok requests the server did not count the tokens: whether "
            f"they had the lengths {self.asked} is not known"
        )

    def told(self) -> dict[str, Any]:
        """As in a summary."""
        return {
            "input_tokens": self.asked.input_tokens,
            "output_tokens": self.asked.output_tokens,
            "input_tokens_p50": self.input_p50,
            "output_tokens_p50": self.output_p50,
            "other": self.other,
            "uncounted": self.uncounted,
            "is_other": self.is_other,
        }


def pair_of(stage: Mapping[str, Any]) -> str:
    """The lengths of a stage of a summary as they are written, ``128:32``; empty without."""
    found = stage.get("lengths")
    return "" if found is None else f"{found['input_tokens']}:{found['output_tokens']}"


def _is_off(tokens: Floats | float, asked: int, least: int) -> Any:
    """Where a count is known and too far from what was asked."""
    return np.abs(np.asarray(tokens) - asked) > max(least, TOLERANCE * asked)


def _median(tokens: Floats) -> float | None:
    known = tokens[~np.isnan(tokens)]
    return percentile(ordered(known), 50.0) if len(known) else None


def _shown(tokens: float | None) -> str:
    return "an unknown number of" if tokens is None else f"{tokens:,.0f}"
