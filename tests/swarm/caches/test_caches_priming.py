"""A replica's cache before a stage: what shows that the flush worked, and what is no such proof."""

from dataclasses import dataclass, field

import pytest

from llm_locust.core.manifest import PrefixShare, ReplicaCache
from llm_locust.swarm.caches import ReplicaError, prepare
from llm_locust.workload.text.prompts import Prompt

PREFIX = PrefixShare.of(0.5, 100, 3)


def primer(number: int | None) -> Prompt:
    return Prompt(text="probe" if number is None else f"prefix {number}")


@dataclass
class FakeReplica:
    """A server that knows what it was sent; ``template`` tokens of every prompt are always cached."""

    url: str = "http://r"
    flushes: bool = True
    refuses: bool = False
    reports: bool = True
    caches: bool = True
    template: int = 0
    fails_at: int = -1
    sent: list[str] = field(default_factory=list)
    known: set[str] = field(default_factory=set)

    def flush(self) -> None:
        if self.refuses:
            raise ReplicaError(f"{self.url}: no")
        if self.flushes:
            self.known.clear()

    def cached(self, prompt: Prompt) -> int | None:
        if len(self.sent) == self.fails_at:
            raise ReplicaError(f"{self.url}: failed")
        text = str(prompt.text)
        self.sent.append(text)
        found = 96 if text in self.known else self.template
        if self.caches:
            self.known.add(text)
        return found if self.reports and self.caches else None


def told(found: ReplicaCache) -> tuple[int | None, int | None, int | None, int]:
    return found.before, found.after, found.again, found.primed


def test_a_cache_that_was_emptied_misses_the_prompt_that_it_had_and_is_filled() -> None:
    replica = FakeReplica()
    found = prepare(replica, PREFIX, primer)
    assert (told(found), found.fault) == ((0, 0, 96, 3), "")
    assert replica.sent == ["probe", "probe", "probe", "prefix 0", "prefix 1", "prefix 2"]


def test_a_flush_that_answers_and_does_nothing_is_seen_by_what_is_still_cached() -> None:
    found = prepare(FakeReplica(flushes=False), PREFIX, primer)
    assert found.fault.startswith("http://r: the flush did nothing: 96 tokens of a prompt")
    assert told(found) == (0, 96, None, 0)


def test_what_every_prompt_shares_with_the_template_is_no_sign_of_it() -> None:
    assert prepare(FakeReplica(template=32), PREFIX, primer).fault == ""


@pytest.mark.parametrize("caches", [True, False])
def test_without_reports_nothing_is_known_of_the_flush_and_nothing_is_claimed(caches: bool) -> None:
    found = prepare(FakeReplica(reports=False, caches=caches, flushes=False), PREFIX, primer)
    assert (told(found), found.fault) == ((None, None, None, 3), "")


def test_a_refused_flush_ends_it_before_anything_is_primed() -> None:
    found = prepare(FakeReplica(refuses=True), PREFIX, primer)
    assert (told(found), found.fault) == ((0, None, None, 0), "http://r: no")


@pytest.mark.parametrize(("at", "primed"), [(0, 0), (2, 0), (3, 0), (5, 2)])
def test_a_request_that_fails_is_a_fault_and_what_was_primed_before_it_is_counted(
    at: int, primed: int
) -> None:
    found = prepare(FakeReplica(fails_at=at), PREFIX, primer)
    assert (found.primed, found.fault) == (primed, "http://r: failed")


def test_prompts_that_share_nothing_need_no_priming() -> None:
    replica = FakeReplica()
    assert prepare(replica, PrefixShare.of(0.0, 100, 3), primer).primed == 0
    assert replica.sent == ["probe"] * 3
