"""The lengths of prompts and answers that a sweep sets in a stage, and those that its requests had."""

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from llm_locust.core.manifest import StageFacts
from llm_locust.core.record import LengthPair
from llm_locust.metrics.columns import Floats
from llm_locust.metrics.measured import Measured
from llm_locust.metrics.stats.censoring import ordered, percentile
from llm_locust.metrics.structs import SummaryPart, key

_OF_STAGE = "the stage"
_OK_REQUESTS = "the stage's ok requests"


class StageLengths(SummaryPart, frozen=True):
    """The lengths that a sweep sets in a stage, and those that its requests had."""

    input_tokens: Annotated[int, key("tokens of each prompt that were asked for", _OF_STAGE)]
    output_tokens: Annotated[int, key("tokens of each answer that were asked for", _OF_STAGE)]
    input_tokens_p50: Annotated[
        float | None, key("median of the prompts' tokens, by the server; null: it counted none", _OK_REQUESTS)
    ]
    output_tokens_p50: Annotated[
        float | None, key("median of the answers' tokens; null: not known", _OK_REQUESTS)
    ]
    other: Annotated[
        int,
        key(
            "requests that were asked for other lengths, or whose prompt was off by more than 5 % and 8 "
            "tokens, or whose answer by more than 5 % and 1 token",
            _OK_REQUESTS,
        ),
    ]
    uncounted: Annotated[int, key("requests whose tokens the server did not count, the others", _OK_REQUESTS)]
    is_other: Annotated[
        bool | None,
        key(
            "`other` are more than 5 %: the stage is not a result; null: too many were not counted",
            _OK_REQUESTS,
        ),
    ]

    def __str__(self) -> str:
        """As they are written in ``--sweep``: ``128:32``."""
        return f"{self.input_tokens}:{self.output_tokens}"


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
        answers = is_off(outputs, asked.output_tokens, LEAST_OUTPUT)
        other = (
            (m.c.asked_input_tokens[rows] != asked.input_tokens)
            | (m.c.asked_output_tokens[rows] != asked.output_tokens)
            | is_off(inputs, asked.input_tokens, LEAST_INPUT)
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
            f"than {TOLERANCE:.0%}; the median was {_tokens_text(self.input_p50)} input and "
            f"{_tokens_text(self.output_p50)} output tokens"
        )
        hints = []
        if self.input_p50 is not None and is_off(self.input_p50, self.asked.input_tokens, LEAST_INPUT):
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

    def figures(self) -> StageLengths:
        return StageLengths(
            input_tokens=self.asked.input_tokens,
            output_tokens=self.asked.output_tokens,
            input_tokens_p50=self.input_p50,
            output_tokens_p50=self.output_p50,
            other=self.other,
            uncounted=self.uncounted,
            is_other=self.is_other,
        )


def is_off(tokens: Floats | float, asked: int, least: int) -> Any:
    """Where a count is known and too far from what was asked."""
    return np.abs(np.asarray(tokens) - asked) > max(least, TOLERANCE * asked)


def _median(tokens: Floats) -> float | None:
    known = tokens[~np.isnan(tokens)]
    return percentile(ordered(known), 50.0) if len(known) else None


def _tokens_text(tokens: float | None) -> str:
    return "an unknown number of" if tokens is None else f"{tokens:,.0f}"
