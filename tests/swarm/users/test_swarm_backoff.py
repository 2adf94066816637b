"""User classes without a run: pauses, walks, own images, and names that would replace others."""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from email.utils import formatdate
from itertools import pairwise
from typing import Any

import gevent
import pytest
from gevent import GreenletExit
from hypothesis import given, strategies as st
from warm_process import warm_code

from llm_locust.client.http.exchange import Exchange
from llm_locust.client.outcome import retry_after_s
from llm_locust.client.recording import Answer
from llm_locust.core.record import Outcome, RequestRecord
from llm_locust.swarm.users.waits import (
    FIRST_S,
    MOST_RETRY_AFTER_S,
    MOST_S,
    Backoffs,
    Pauses,
    admitted,
    bound_s,
)
from llm_locust.wire.draft import Draft

# --- Users of a closed loop wait after failed requests: the law of their waits, on a virtual clock


FAILURES = sorted(set(Outcome) - {Outcome.OK, Outcome.REJECTED, Outcome.CANCELLED, Outcome.RESENT})


@dataclass
class VirtualTime:
    """A clock that only waits move."""

    now_s: float = 1000.0
    waited_s: list[float] = field(default_factory=list)

    def read(self) -> float:
        return self.now_s

    def pause(self, seconds: float) -> None:
        self.waited_s.append(seconds)
        self.now_s += seconds


def backoffs(clock: VirtualTime, seed: int = 7, worker: int = 0) -> Backoffs:
    return Backoffs(seed, worker, clock.read, clock.pause)


def ended(outcome: Outcome, user: int | None = 0, retry_after_s: float | None = None) -> Answer:
    record = RequestRecord(
        request_id="r", name="chat", outcome=outcome, scheduled_ns=0, started_ns=0, ended_ns=1, user=user
    )
    return Answer(record, Draft().finish(), retry_after_s)


@given(st.lists(st.sampled_from([*Outcome]), max_size=40), st.integers(0, 2**31))
def test_each_wait_is_within_the_bound_of_the_failures_in_a_row(outcomes: list[Outcome], seed: int) -> None:
    clock = VirtualTime()
    users, in_a_row = backoffs(clock, seed), 0
    for outcome in outcomes:
        users.note(ended(outcome))
        if outcome in FAILURES:
            in_a_row += 1
        elif outcome in (Outcome.OK, Outcome.REJECTED):
            in_a_row = 0
        before = len(clock.waited_s)
        users.wait(0)
        waited = sum(clock.waited_s[before:])
        fresh = outcome in FAILURES
        assert 0 <= waited <= (min(MOST_S, FIRST_S * 2 ** (in_a_row - 1)) if fresh else 0)
    assert users.waits == len(clock.waited_s)
    assert users.waited_s == pytest.approx(sum(clock.waited_s))


def test_the_bounds_double_from_100_ms_to_5_s() -> None:
    bounds = [bound_s(n) for n in range(1, 12)]
    assert bounds[:6] == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2])
    assert set(bounds[6:]) == {5.0}
    assert all(a <= b for a, b in pairwise(bounds))
    assert bound_s(10**9) == MOST_S  # after a night of failures


def test_waits_are_spread_over_all_of_their_bound() -> None:
    clock = VirtualTime()
    users = backoffs(clock)
    for user in range(2000):
        users.note(ended(Outcome.HTTP_ERROR, user))
        users.wait(user)
    shares = sorted(wait / FIRST_S for wait in clock.waited_s)
    assert shares[len(shares) // 10] == pytest.approx(0.1, abs=0.03)
    assert shares[len(shares) // 2] == pytest.approx(0.5, abs=0.05)
    assert shares[-1] <= 1


def test_a_success_resets_one_user_and_no_other() -> None:
    clock = VirtualTime()
    users = backoffs(clock)
    for _ in range(9):
        for user in (0, 1):
            users.note(ended(Outcome.TIMEOUT, user))
    users.note(ended(Outcome.OK, 0))
    users.wait(0)
    assert clock.waited_s == []
    users.note(ended(Outcome.TIMEOUT, 0))
    users.wait(0)
    assert sum(clock.waited_s) <= FIRST_S
    users.wait(1)
    assert len(clock.waited_s) == 2


def test_equal_seeds_draw_equal_waits_and_no_two_users_the_same() -> None:
    def waits(seed: int, worker: int, user: int) -> list[float]:
        clock = VirtualTime()
        users = backoffs(clock, seed, worker)
        for _ in range(8):
            users.note(ended(Outcome.HTTP_ERROR, user))
            users.wait(user)
        return clock.waited_s

    assert waits(7, 0, 3) == waits(7, 0, 3)
    different = [waits(7, 0, 3), waits(8, 0, 3), waits(7, 1, 3), waits(7, 0, 4)]
    assert len({tuple(each) for each in different}) == 4


def test_time_that_a_user_spends_otherwise_counts() -> None:
    clock = VirtualTime()
    users = backoffs(clock)
    users.note(ended(Outcome.EMPTY))
    clock.now_s += MOST_S
    users.wait(0)
    assert (users.waits, users.waited_s) == (0, 0.0)


@pytest.mark.parametrize(("asked_s", "least_s"), [(3.0, 3.0), (0.0, 0.0), (1e9, MOST_RETRY_AFTER_S)])
def test_retry_after_comes_before_the_jitter_and_is_bounded(asked_s: float, least_s: float) -> None:
    clock = VirtualTime()
    users = backoffs(clock)
    users.note(ended(Outcome.HTTP_ERROR, retry_after_s=asked_s))
    users.wait(0)
    assert least_s <= sum(clock.waited_s) <= least_s + FIRST_S


def answered(status: int, **headers: str) -> Exchange:
    exchange = Exchange()
    exchange.status = status
    exchange.headers.update((name.replace("_", "-").encode(), v.encode()) for name, v in headers.items())
    return exchange


def test_retry_after_is_read_as_seconds_or_as_a_date() -> None:
    assert retry_after_s(answered(429, retry_after="2")) == 2.0
    assert retry_after_s(answered(503, retry_after="1.5")) == 1.5
    later = retry_after_s(answered(503, retry_after=formatdate(time.time() + 30, usegmt=True)))
    assert later is not None
    assert 25 < later <= 30
    assert retry_after_s(answered(429, retry_after=formatdate(0, usegmt=True))) == 0.0
    assert retry_after_s(answered(429)) is None
    assert retry_after_s(answered(200, retry_after="2")) is None


@pytest.mark.parametrize(
    "value", ["-1", "1e400", "9" * 400, "soon", "", "Mon, 99 Foo 99999 99:99:99 GMT", "٣"]
)
def test_what_is_no_time_is_no_retry_after(value: str) -> None:
    assert retry_after_s(answered(429, retry_after=value)) is None


def test_the_end_of_the_load_ends_every_wait_at_once() -> None:
    users = Backoffs(7, 0)
    for user in range(5):
        users.note(ended(Outcome.HTTP_ERROR, user, retry_after_s=60.0))
    waiting = [gevent.spawn(users.wait, user) for user in range(5)]
    gevent.sleep(0)
    assert users.waits == 5
    users.end()
    gevent.joinall(waiting, timeout=30)
    assert all(greenlet.successful() for greenlet in waiting)
    assert users.waited_s < 5 * 30
    users.note(ended(Outcome.HTTP_ERROR, 9, retry_after_s=60.0))
    users.wait(9)  # a user's farewell
    assert users.waits == 5


def test_a_user_that_is_ended_while_it_waits_is_counted() -> None:
    users = Backoffs(7, 0)
    users.note(ended(Outcome.HTTP_ERROR, retry_after_s=60.0))
    waiting = gevent.spawn(users.wait, 0)
    gevent.sleep(0)
    waiting.kill()
    assert users.counts()["backoff_waits"] == 1
    assert users.counts()["backoff_ns"] > 0


def test_requests_of_no_user_cause_no_wait() -> None:
    clock = VirtualTime()
    users = backoffs(clock)
    users.note(ended(Outcome.HTTP_ERROR, None))
    users.wait(0)
    assert clock.waited_s == []


class Door:
    """A gate that opens while it is waited for, and takes some time where it is open."""

    def __init__(self, clock: VirtualTime, *, is_open: bool = True, late_s: float = 0.0) -> None:
        self.is_open = is_open
        self._clock = clock
        self._late_s = late_s

    def enter(self) -> None:
        self.is_open = True
        self._clock.now_s += self._late_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> VirtualTime:
    """A clock that is the wall clock too."""
    clock = VirtualTime()
    monkeypatch.setattr(time, "time_ns", lambda: round(clock.now_s * 1e9))
    return clock


def due_s(users: Backoffs, door: Door, at_s: float = 1000.0) -> float:
    return admitted(0, round(at_s * 1e9), users, door, door.enter) / 1e9


def test_a_process_that_is_held_up_at_an_open_gate_has_not_waited(clock: VirtualTime) -> None:
    assert due_s(backoffs(clock), Door(clock, late_s=0.5)) == 1000.0
    assert clock.now_s == 1001.0


def test_a_request_is_due_when_the_next_stage_begins_or_a_back_off_ends(clock: VirtualTime) -> None:
    users, door = backoffs(clock), Door(clock, is_open=False, late_s=0.5)
    assert due_s(users, door) == 1000.5
    assert due_s(users, door) == 1000.0
    door = Door(clock)
    users.note(ended(Outcome.HTTP_ERROR, retry_after_s=2.0))
    ready_s = due_s(users, door)
    assert ready_s == pytest.approx(clock.now_s, abs=1e-6)
    assert clock.now_s > 1003.0
    users.note(ended(Outcome.OK))
    assert due_s(users, door) == 1000.0


@pytest.mark.parametrize("late_before_s", [0.0, 20.0], ids=["in the wait", "before it too"])
def test_the_end_of_a_back_off_that_is_noticed_late_is_lateness(
    clock: VirtualTime, late_before_s: float
) -> None:
    def pause(seconds: float) -> None:
        clock.now_s += seconds + 0.3

    users = Backoffs(7, 0, clock.read, pause)
    users.note(ended(Outcome.HTTP_ERROR, retry_after_s=2.0))
    ready_s = users._users[0].ready_s
    clock.now_s += late_before_s
    assert due_s(users, Door(clock)) == pytest.approx(ready_s, abs=1e-6)
    assert clock.now_s >= ready_s + 0.299
    assert due_s(users, Door(clock), 1010.0) == 1010.0


def test_what_other_walks_of_a_user_do_during_its_wait_does_not_move_it(clock: VirtualTime) -> None:
    def pause(seconds: float) -> None:
        clock.pause(seconds)
        users.note(ended(next(others), retry_after_s=9.0))

    users, others = Backoffs(7, 0, clock.read, pause), iter([Outcome.OK, Outcome.TIMEOUT])
    for _ in range(2):
        users.note(ended(Outcome.HTTP_ERROR, retry_after_s=2.0))
        ready_s = users._users[0].ready_s
        assert due_s(users, Door(clock)) == pytest.approx(ready_s, abs=1e-6)


def test_a_stage_that_ends_during_a_wait_moves_it_too(clock: VirtualTime) -> None:
    users, door, closing = backoffs(clock), Door(clock), iter([False, True])

    def enter() -> None:
        door.is_open = next(closing)
        clock.now_s += 1

    assert admitted(0, 10**12, users, door, enter) == 1002 * 10**9


# --- Names of a user class that would replace what this package or Locust calls under that name


# Locust patches the standard library: classes are made in a process of their own.
CLASSES = """
import json, sys
from locust import TaskSet, between, tag, task
from llm_locust import ChatUser, CompletionUser, ConversationUser, OpenAIUser, OpenLoopUser, ScenarioUser

class Greeter:
    def chat(self): ...

class Extended(ConversationUser):
    wait_time = between(1, 2)
    request_name = "talk"
    turns = "3"

    def on_start(self): ...

    def on_stop(self): ...

    def ask(self, prompt=None, **of):
        return super().ask(prompt, **of)

    @property
    def kind(self):
        return super().kind

    @task
    def talk(self): ...

found = {}
for line in json.loads(sys.stdin.read()):
    bases, name, value = line
    try:
        names = {"__module__": __name__} | ({name: eval(value)} if name else {})
        type("Support", tuple(eval(bases)), names)
        found[json.dumps(line)] = ""
    except TypeError as e:
        found[json.dumps(line)] = str(e)
print(json.dumps(found))
"""

REFUSED = {
    ("[ChatUser]", "ask", "task(lambda self: None)"): "a task, but PromptUser.ask",
    ("[ChatUser]", "ask", "task(3)(lambda self: None)"): "a task, but PromptUser.ask",
    ("[ChatUser]", "ask", "tag('slow')(task(lambda self: None))"): "a task, but PromptUser.ask",
    ("[ChatUser]", "ask", "task(type('Steps', (TaskSet,), {}))"): "a task, but PromptUser.ask",
    ("[ChatUser]", "ask", "lambda self: None"): "a function with other arguments, but PromptUser.ask",
    ("[ChatUser]", "chat", "lambda self, text: None"): "a function with other arguments, but ChatUser.chat",
    ("[ChatUser]", "chat", "staticmethod(lambda messages=None: None)"): "a function with other arguments",
    ("[ChatUser]", "chat", "'hello'"): "not a function, but ChatUser.chat",
    ("[ChatUser]", "headers", "task(lambda self: None)"): "a task, but PromptUser.headers",
    ("[ChatUser]", "headers", "lambda self: None"): "a function, but PromptUser.headers",
    ("[ChatUser]", "session", "None"): "not a property, but LlmUser.session",
    ("[ChatUser]", "number", "lambda self: None"): "not a property, but LlmUser.number",
    ("[CompletionUser]", "complete", "task(lambda self: None)"): "a task, but CompletionUser.complete",
    ("[ConversationUser]", "converse", "task(lambda self: None)"): "a task, but ConversationUser.converse",
    ("[ConversationUser]", "history", "task(lambda self: None)"): "a task, but ConversationUser.history",
    (
        "[OpenLoopUser]",
        "prompt_of",
        "lambda self: None",
    ): "a function with other arguments, but OpenLoopUser.prompt_of",
    ("[OpenLoopUser]", "follows_schedule", "lambda cls, settings: 1"): "a function with other arguments",
    ("[ScenarioUser]", "send_next", "task(lambda self: None)"): "a task, but ScenarioUser.send_next",
    ("[OpenAIUser]", "client", "task(lambda self: None)"): "a task, but OpenAIUser.client",
    ("[OpenAIUser]", "model", "'other'"): "not a property, but OpenAIUser.model",
    ("[ChatUser]", "stop", "task(lambda self: None)"): "a task, but User.stop",
    ("[Greeter, ChatUser]", "", ""): "a function with other arguments, but ChatUser.chat",
}

TAKEN = (
    ("[ChatUser]", "ask_once", "task(lambda self: None)"),
    ("[OpenAIUser]", "ask", "task(lambda self: None)"),
    ("[OpenLoopUser]", "prompt_of", "lambda self, arrival: None"),
    ("[ChatUser, Greeter]", "", ""),
    ("[Extended]", "", ""),
)


@pytest.fixture(scope="module")
def found() -> dict[str, str]:
    """What each class was refused with; "" for one that was made."""
    return dict(json.loads(warm_code(CLASSES, input=json.dumps([*REFUSED, *TAKEN]))))


@pytest.mark.parametrize("case", REFUSED)
def test_a_name_that_is_needed_is_refused_with_another_to_take(
    case: tuple[str, str, str], found: dict[str, str]
) -> None:
    name, text = case[1] or "chat", found[json.dumps(case)]
    assert f"user class Support: {name!r} is {REFUSED[case]}" in text
    assert f"'{name}_once'" in text


@pytest.mark.parametrize("case", TAKEN)
def test_a_method_may_be_extended_and_attributes_set(
    case: tuple[str, str, str], found: dict[str, str]
) -> None:
    assert found[json.dumps(case)] == ""


# --- Prompts of a locustfile's own code have the images that the run asks for


# Locust patches the standard library: users are made in a process of their own.
IMAGES_SCRIPT = """
import json
from types import SimpleNamespace as Fake

from llm_locust.swarm.users.requester import Requester
from llm_locust.swarm.users.users import ChatUser
from llm_locust.wire.chat_form import images_in
from llm_locust.workload.prompts import parse_images
from llm_locust.workload.plan import WorkloadSpec
from llm_locust.workload.prompts import Prompt


class Chat(ChatUser):
    abstract = True


def user(images, number=0):
    spec = WorkloadSpec(images=images and parse_images(images))
    traffic = Fake(kind=Fake(spec=spec), seed=1)
    session = Fake(kinds=Fake(traffic=lambda _: traffic), worker_index=0, run={"salt": "s"})
    made = Chat.__new__(Chat)
    made._requester, made.sent = Requester(session, None, number), []
    made._sent_headers = made.headers
    made._requester.ask = lambda prompt=None, **_: made.sent.append(prompt)
    return made


def shown(made):
    found = [images_in((prompt and prompt.messages) or ()) for prompt in made.sent]
    return [0 if each is None else each.images for each in found]


one, other, plain = user("count=2 size=16x16"), user("count=2 size=16x16", 1), user(None)
own = {"type": "image_url", "image_url": {"url": "https://x/y.png"}}
for each in (one, other, plain):
    each.chat("what is this?")
    each.chat([{"role": "user", "content": "and this?"}, {"role": "assistant", "content": "hm"}])
    each.chat([{"role": "user", "content": [own]}])
    each.ask(Prompt(text="next"), turn=1)
    each.chat()
ends = [
    part["image_url"]["url"].end.decode()
    for prompt in (*one.sent[:2], *other.sent[:2])
    for part in prompt.messages[0]["content"]
    if part["type"] == "image_url"
]
print(json.dumps({"one": shown(one), "plain": shown(plain), "ends": ends}))
"""


@pytest.fixture(scope="module")
def made() -> dict[str, Any]:
    return dict(json.loads(warm_code(IMAGES_SCRIPT)))


def test_texts_and_messages_get_images_and_what_has_some_and_turns_are_sent_as_they_are(
    made: dict[str, Any],
) -> None:
    assert made["one"] == [2, 2, 1, 0, 0]  # the last is the workload's, which puts its own
    assert made["plain"] == [0, 0, 1, 0, 0]


def test_no_two_of_them_are_alike_and_another_user_has_others(made: dict[str, Any]) -> None:
    assert len(made["ends"]) == len(set(made["ends"])) == 8


# --- The pauses of the agents of a process: none ends early, and each as if it were alone


@pytest.fixture
def pauses() -> Iterator[Pauses]:
    made = Pauses()
    yield made
    made._alarm.close()


def test_every_pause_ends_and_none_before_its_time(pauses: Pauses) -> None:
    now_ns, ended = time.time_ns(), list[tuple[int, int]]()

    def pause(after_ms: int) -> None:
        pauses.until(now_ns + after_ms * 1_000_000)
        ended.append((after_ms, time.time_ns() - now_ns))

    order = [40, 5, 25, 5, 0, 60, 15]
    gevent.joinall([gevent.spawn(pause, after_ms) for after_ms in order], timeout=60, raise_error=True)
    assert sorted(after_ms for after_ms, _ in ended) == sorted(order)
    assert all(after_ns >= after_ms * 1_000_000 for after_ms, after_ns in ended)


def test_one_that_is_killed_or_begins_another_does_not_disturb_the_others(pauses: Pauses) -> None:
    begun_ns, ended = time.time_ns(), list[str]()

    def again() -> None:
        for _ in range(3):
            pauses.until(time.time_ns() + 2_000_000)
        ended.append("again")

    def last() -> None:
        pauses.until(begun_ns + 330_000_000)
        ended.append("last")

    killed = gevent.spawn(pauses.until, begun_ns + 300_000_000)
    others = [gevent.spawn(again), gevent.spawn(last)]
    gevent.sleep(0)
    killed.kill()
    gevent.joinall(others, timeout=60, raise_error=True)
    assert isinstance(killed.value, GreenletExit)
    assert sorted(ended) == ["again", "last"]


def test_a_pause_of_any_length_waits(pauses: Pauses) -> None:
    endless = gevent.spawn(pauses.until, 10**300)
    gevent.spawn(pauses.until, time.time_ns() + 1_000_000).join()
    assert not endless.ready()
    endless.kill()


# --- When the turns of one walk are due, on a virtual clock: a process that is late hides nothing of it


# Locust patches the standard library: agents walk in a process of their own. An answer takes 100 ms, and the
# process handles each 300 ms late.
SCRIPT = """
import json
import time
from types import SimpleNamespace as Fake

from llm_locust.core.record import Outcome
from llm_locust.swarm.users.users import Walk
from llm_locust.workload.trajectory_formats import Trajectory, Turn

MS = 1_000_000


class LateRequester:
    now_ns = 10**18
    session = Fake(gate=Fake(phase=0), client=Fake(new_request_id=lambda: "r"))

    def __init__(self):
        self.sent = []

    def follow(self, session_id, parent_id):
        pass

    def bounded(self, prompt):
        return prompt

    def prepared(self, prompt, session_id):
        return prompt.messages[0]["content"]

    def admitted(self, due_ns):
        return due_ns

    def send(self, name, due_ns, **_):
        ended_ns = self.now_ns + 100 * MS
        self.now_ns = ended_ns + 300 * MS
        self.sent.append((name, due_ns, ended_ns))
        return Fake(record=Fake(outcome=Outcome.OK, ended_ns=ended_ns))


def walk(name, *forks, turns=1, pause_s=0.0):
    said = ({"role": "user", "content": name},)
    first = Turn(messages=said, forks=forks, pause_s=pause_s)
    return Trajectory(id=name, turns=(first, *[Turn(messages=said)] * (turns - 1)))


def held(*forks, pause_s=0.0):
    requester = LateRequester()
    time.time_ns = lambda: requester.now_ns
    root = walk("root", *forks, turns=2, pause_s=pause_s)
    ended_ns = Walk(requester, Fake(history="recorded"), root, "").hold()
    return requester.sent, ended_ns


print(json.dumps({
    "none": held(),
    "one": held(walk("a")),
    "two": held(walk("a", turns=2), walk("b")),
    "its own": held(walk("a", walk("b", walk("c")))),
    "long pause": held(walk("a"), pause_s=0.6),
}))
"""


@pytest.fixture(scope="module")
def walks() -> dict[str, tuple[list[tuple[str, int, int]], int]]:
    """Of each walk what was sent, when it was due and when it ended; and when the walk ended."""
    return dict(json.loads(warm_code(SCRIPT)))


def test_a_turn_is_due_when_what_it_waits_for_ended_however_late_that_is_noticed(
    walks: dict[str, tuple[list[tuple[str, int, int]], int]],
) -> None:
    for name, turns in {"none": 2, "one": 3, "two": 5, "its own": 5}.items():
        (*before, (who, due_ns, last_ns)), ended_ns = walks[name]
        assert (name, len(before) + 1, who) == (name, turns, "root")
        assert due_ns == max(end for _, _, end in before), name
        assert ended_ns == last_ns, name


def test_a_pause_that_is_longer_than_all_sub_agents_counts_from_its_turn(
    walks: dict[str, tuple[list[tuple[str, int, int]], int]],
) -> None:
    first, _, last = walks["long pause"][0]
    assert last[1] == first[2] + 600_000_000
