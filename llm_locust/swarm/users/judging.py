"""Checks of answers against validators and expected answers, before the record is passed on.

The client calls them at the end of a request, through :attr:`Call.check`. The resulting record is the only
one: the user's code, Locust's failures, the listeners and the run's file all get it.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any

from llm_locust.client.recording import Answer
from llm_locust.core.record import Outcome, RequestRecord
from llm_locust.workload.answers import (
    CompiledValidator,
    ExpectedAnswer,
    ExpectedError,
    expected_answer,
    is_correct,
)
from llm_locust.workload.text.prompts import Prompt

logger = logging.getLogger(__name__)

_REASON_LENGTH = 200

#: Checks of one answer that take longer are logged, once.
SLOW_S = 0.02


def judged(
    answer: Answer,
    validators: Sequence[CompiledValidator],
    expected: ExpectedAnswer | None = None,
    *,
    prompt: Prompt | None = None,
    hashed: bool = False,
    failed: Callable[[CompiledValidator, Exception], None] = lambda check, error: None,
) -> RequestRecord:
    """Record of an answer with the results of the checks; an answer that is not ``ok`` keeps its record.

    The first validator that fails makes it ``rejected``. The comparison with the expected answer is made in
    any case: otherwise validators would raise the accuracy.

    Args:
        prompt: passed to the user's own validators with the answer.
        hashed: identify equal answers by ``answer_hash``; 2 µs for an answer of 2 kB, 70 µs for 100 kB.
        failed: called with each exception of a user's function. It counts as a rejection.
    """
    record, text = answer.record, answer.reply.text
    if record.outcome is not Outcome.OK:
        return record
    found: dict[str, Any] = {}
    if expected is not None:
        found["correct"] = is_correct(text, expected)
    if hashed:
        found["answer_hash"] = answer_hash(text)
    if refusal := _first_refusal(text, validators, prompt, failed):
        check, why_not = refusal
        found |= {
            "outcome": Outcome.REJECTED,
            "rejected_by": check.name,
            "error": f"{check.name}: {why_not}"[:_REASON_LENGTH],
        }
    return replace(record, **found) if found else record


def _first_refusal(
    text: str,
    validators: Sequence[CompiledValidator],
    prompt: Prompt | None,
    failed: Callable[[CompiledValidator, Exception], None],
) -> tuple[CompiledValidator, str] | None:
    for check in validators:
        try:
            why_not = check.why_not(text, prompt)
        except Exception as e:  # from the user's own code
            failed(check, e)
            why_not = f"{type(e).__name__}: {e}"
        if why_not is not None:
            return check, why_not
    return None


def answer_hash(text: str) -> int:
    """64 bits of BLAKE2b, signed: equal for equal answers."""
    return int.from_bytes(
        blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest(), "big", signed=True
    )


@dataclass(slots=True)
class Judge:
    """Checks for the answers of one class of requests, in one process.

    Attributes:
        match: how a plain expected answer is compared, see :mod:`llm_locust.workload.answers`.
        consistency: compare answers to equal prompts, also to prompts without an id.
    """

    validators: tuple[CompiledValidator, ...] = ()
    match: str | None = None
    consistency: bool = False
    _said: set[str] = field(default_factory=set)

    def check(
        self, prompt: Prompt | None, expected: object = None, *, hashed: bool = False
    ) -> Callable[[Answer], RequestRecord] | None:
        """Value of :attr:`Call.check` for a prompt; None if there is nothing to check.

        Args:
            expected: value of the dataset's line, unchanged.
            hashed: the prompt may occur again.
        """
        right = self._ready(expected)
        hashed = hashed or self.consistency
        if not (self.validators or right or hashed):
            return None

        def check(answer: Answer) -> RequestRecord:
            begun = time.perf_counter()
            record = judged(
                answer, self.validators, right, prompt=prompt, hashed=hashed, failed=self._own_code_failed
            )
            self._mind_the_time(time.perf_counter() - begun)
            return record

        return check

    def _ready(self, expected: object) -> ExpectedAnswer | None:
        if expected is None:
            return None
        try:
            return expected_answer(expected, self.match)
        except ExpectedError as e:
            self._say_once("expected", f"answers are not compared: {e}")
            return None

    def _own_code_failed(self, check: CompiledValidator, error: Exception) -> None:
        self._say_once(
            check.name, f"validator {check.name!r} raised {error!r}: its answers count as rejected"
        )

    def _mind_the_time(self, took_s: float) -> None:
        """Warn of slow checks. Our own are bounded; a user's function, or an overloaded machine, is not."""
        if took_s > SLOW_S:
            self._say_once(
                "slow",
                f"the validators of an answer took {took_s * 1e3:.0f} ms, in which nothing else could be "
                "read; a function of your own must neither wait nor compute for long",
            )

    def _say_once(self, key: str, text: str) -> None:
        if key not in self._said:
            self._said.add(key)
            logger.warning("%s", text)


def prompt_key(body: bytes) -> str:
    """Id for a prompt without one: equal for equal bodies."""
    return "body-" + blake2b(body, digest_size=6).hexdigest()
