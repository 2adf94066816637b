"""Answers held against validators and expected answers, before anyone hears of them.

The client asks for this at the end of a request, through :attr:`Call.check`: the record that comes out is
the only one. The user's code, Locust's failures, the listeners and the run's file all have it.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any

from llm_locust.client.stream import Answer
from llm_locust.core.record import Outcome, RequestRecord
from llm_locust.workload.answers.expected import ExpectedAnswer, ExpectedError, expected_answer, is_correct
from llm_locust.workload.answers.validators import Check
from llm_locust.workload.text.prompts import Prompt

logger = logging.getLogger(__name__)

_REASON_LENGTH = 200

#: Checks of one answer that take longer are said, once.
SLOW_S = 0.02


def judged(
    answer: Answer,
    validators: Sequence[Check],
    expected: ExpectedAnswer | None = None,
    *,
    prompt: Prompt | None = None,
    hashed: bool = False,
    failed: Callable[[Check, Exception], None] = lambda check, error: None,
) -> RequestRecord:
    """The answer's record with what the checks found; of an answer that is not ``ok``, as it is.

    The first validator that says no makes it ``rejected``. Whether the answer is the expected one is
    told in any case: else validators would make the accuracy look better.

    Args:
        prompt: what validators of the user's own get beside the answer.
        hashed: tell equal answers by ``answer_hash``; 2 µs for an answer of 2 kB, 70 µs for 100 kB.
        failed: hears of each exception of a user's function. It counts as its rejection.
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
    validators: Sequence[Check],
    prompt: Prompt | None,
    failed: Callable[[Check, Exception], None],
) -> tuple[Check, str] | None:
    for check in validators:
        try:
            why_not = check.why_not(text, prompt)
        except Exception as e:  # of the user's own code
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
    """What the answers of one class of requests are held against, in one process.

    Attributes:
        match: how a plain expected answer is compared, see :mod:`llm_locust.workload.answers.expected`.
        consistency: tell equal answers, of prompts without an id too.
    """

    validators: tuple[Check, ...] = ()
    match: str | None = None
    consistency: bool = False
    _said: set[str] = field(default_factory=set)

    def check(
        self, prompt: Prompt | None, expected: object = None, *, hashed: bool = False
    ) -> Callable[[Answer], RequestRecord] | None:
        """What :attr:`Call.check` is for a prompt; None where there is nothing to be held against.

        Args:
            expected: what the dataset's line says, as it stands there.
            hashed: the prompt may come again.
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

    def _own_code_failed(self, check: Check, error: Exception) -> None:
        self._say_once(
            check.name, f"validator {check.name!r} raised {error!r}: its answers count as rejected"
        )

    def _mind_the_time(self, took_s: float) -> None:
        """Our own checks are bounded; a user's function, or a machine that is too busy, is not."""
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
    """An id for a prompt that has none: equal for equal bodies."""
    return "body-" + blake2b(body, digest_size=6).hexdigest()
