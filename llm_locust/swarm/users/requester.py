"""From a prompt to its request, for one user and one kind of request; conversations of such requests."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice, repeat

import gevent
from numpy.random import Generator

from llm_locust.client.pending import PendingAnswer
from llm_locust.client.recording import Answer, Call
from llm_locust.core.record import Outcome, RequestRecord
from llm_locust.figures.sessions import session_name
from llm_locust.scenario.request_kind import RequestForm, RequestKind
from llm_locust.swarm.users.session import LoadSession
from llm_locust.swarm.users.traffic import prompt_key
from llm_locust.swarm.users.waits import admitted
from llm_locust.wire.chat_form import images_in
from llm_locust.wire.payload import AskedResults
from llm_locust.workload.body import encoded
from llm_locust.workload.conversations import (
    DEFAULT_TURNS,
    AnsweredTurn,
    ConversationId,
    ConversationPlan,
    Script,
    ShareGptConversation,
    carry_on,
    drawn_script,
    exchange,
    manner,
    script_of,
    turn_count,
    with_history,
)
from llm_locust.workload.draws import IMAGES, generator
from llm_locust.workload.plan import Workload
from llm_locust.workload.prompts import Prompt, head_words, with_words


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request that is ready to be sent; ``target`` is the index of its arm, if there are any."""

    form: RequestForm
    target: int | None
    prompt: Prompt
    body: bytes
    asked: AskedResults | None
    prompt_id: str | None
    check: Callable[[Answer], RequestRecord] | None


class Requester:
    """Sends one kind of request for one user.

    Every method raises StopUser if the run accepts no more requests.
    """

    def __init__(self, session: LoadSession, kind: RequestKind, number: int) -> None:
        self.traffic = session.kinds.traffic(kind)
        self.number = number
        self._session = session
        self._prompts: dict[Workload, Iterator[Prompt]] = {}
        self._output_lengths: Iterator[int | None] | None = None
        self._images: Generator | None = None
        self._served = False  # its last answer was ok
        self._pending: PendingAnswer | None = None  # the last one that may have been recorded later

    @property
    def session(self) -> LoadSession:
        return self._session.enter()

    def admitted(self, due_ns: int) -> int:
        """Wait until a request may start; return when it was due, which such a wait moves."""
        session = self._session
        return admitted(self.number, due_ns, session.backoffs, session.gate, session.enter)

    def workload(self, warm_up: bool | None = None) -> Workload:
        """Workload of the next prompt.

        Args:
            warm_up: whether it is sent before the measured phase; None: according to the clock.
        """
        gate = self.session.gate
        if gate.prefix is not None:  # which the warm-up has too: its texts are in the servers' caches
            return self.traffic.workload.of_prefix(*gate.prefix)
        early = gate.is_warm_up_now if warm_up is None else warm_up
        workload = self.traffic.warm_up if early else self.traffic.workload
        return workload if gate.lengths is None else workload.of_lengths(gate.lengths)

    def next_prompt(self, warm_up: bool | None = None) -> Prompt:
        """The next prompt of the workload."""
        workload = self.workload(warm_up)
        if workload not in self._prompts:
            self._prompts[workload] = workload.prompts(self.number)
        return next(self._prompts[workload])

    def bounded(self, prompt: Prompt) -> Prompt:
        """Return a prompt with the workload's limit of the answer's length, unless it has one."""
        if prompt.asked_output_tokens is not None:
            return prompt
        if (lengths := self._session.gate.lengths) is not None:
            return replace(prompt, asked_output_tokens=lengths.output_tokens)
        if self._output_lengths is None:
            self._output_lengths = self.traffic.workload.output_lengths(self.number)
        return replace(prompt, asked_output_tokens=next(self._output_lengths))

    def prepared(self, prompt: Prompt, session_id: str | None = None) -> Prepared:
        """Prepare all of a request that can be made before its time, after drawing its arm.

        Args:
            session_id: all requests of a session have one arm.
        """
        traffic, client = self.traffic, self._session.client
        target = client.routes.draw(session_id)
        form = traffic.form(target, self.number, session_id)
        if form.prefix is not None:
            own = client.new_request_id() if form.prefix == "cold" else ""
            prompt = with_words(prompt, head_words(self._session.run["salt"], form.prefix, own))
        fields, judge = form.template.fields(prompt), traffic.judge
        body, results = encoded(fields), form.template.asked(fields)
        if results is not None:  # there is no text to judge
            return Prepared(form, target, prompt, body, results, prompt.id, None)
        prompt_id = prompt.id or (prompt_key(body) if judge.consistency else None)
        check = judge.check(prompt, prompt.expected, hashed=prompt_id is not None)
        return Prepared(form, target, prompt, body, None, prompt_id, check)

    def illustrated(self, prompt: Prompt) -> Prompt:
        """A prompt of the user's own code, with the images that are asked for unless it has some."""
        spec, session = self.traffic.kind.spec, self._session
        if spec.images is None or images_in(prompt.messages or ()) is not None:
            return prompt
        if self._images is None:
            self._images = generator(self.traffic.seed, session.worker_index, self.number, IMAGES)
        return spec.illustrated(prompt, self._images, session.run["salt"])

    def follow(self, session_id: str, parent_id: str) -> None:
        """Let a session ask for the model of another one that began it."""
        if self.traffic.models is not None:
            self.traffic.models.keep(session_id, self.traffic.models.choose(self.number, parent_id))

    def ask(
        self,
        prompt: Prompt | None = None,
        *,
        name: str | None = None,
        session_id: str | None = None,
        turn: int | None = None,
        patience_s: float | None = None,
    ) -> Answer:
        """Prepare a prompt (default: the workload's next) and send it now; see :meth:`PromptUser.ask`."""
        self._raise_pending()
        self.session.backoffs.wait(self.number)
        ready, scheduled_ns = self._prepared_now(prompt, session_id)
        # A failure has to be known before the next request, which it may delay.
        may_wait = self._served and ready.check is None and session_id is None
        answer = self.send(
            ready,
            scheduled_ns,
            name=name,
            session_id=session_id,
            turn=turn,
            patience_s=patience_s,
            may_wait=may_wait,
        )
        self._pending = answer if isinstance(answer, PendingAnswer) else None
        return answer

    def _raise_pending(self) -> None:
        """Raise what a listener has raised about the last answer, as one that ends its user."""
        pending, self._pending = self._pending, None
        if pending is not None and pending.error is not None:
            raise pending.error

    def _prepared_now(self, prompt: Prompt | None, session_id: str | None) -> tuple[Prepared, int]:
        """A request of the stage that is under way, and when it is due.

        A prompt may take so long to make that a stage of other prompts has begun: then it is not sent.
        """
        gate = self._session.gate
        while True:
            self._session.enter()  # in a sweep it waits for the next stage, which is no delay of the request
            scheduled_ns, stage_prompts = time.time_ns(), (gate.lengths, gate.prefix)
            ready = self.prepared(self.next_prompt() if prompt is None else self.bounded(prompt), session_id)
            self._session.enter()
            if (gate.lengths, gate.prefix) == stage_prompts:
                return ready, scheduled_ns

    def send(
        self,
        ready: Prepared,
        scheduled_ns: int,
        *,
        name: str | None = None,
        session_id: str | None = None,
        turn: int | None = None,
        blocked_ns: int | None = None,
        patience_s: float | None = None,
        may_wait: bool = False,
    ) -> Answer:
        """Send it now, wait for the whole answer, record it; ``blocked_ns`` as in the record.

        Args:
            may_wait: the answer may get its record after the return.
        """
        session, traffic, prompt = self.session, self.traffic, ready.prompt
        image_facts = None if prompt.messages is None else images_in(prompt.messages)
        call = Call(
            request_id=session.client.new_request_id(),
            name=name or prompt.name or traffic.name,
            scheduled_ns=scheduled_ns,
            endpoint=traffic.endpoint,
            slo_class=prompt.slo_class or traffic.kind.slo_class,
            model=ready.form.model,
            streamed=ready.form.template.streamed,
            target=ready.target,
            user=self.number,
            asked_input_tokens=prompt.asked_input_tokens,
            asked_output_tokens=prompt.asked_output_tokens,
            session=session_id,
            turn=turn,
            blocked_ns=blocked_ns,
            prompt_id=ready.prompt_id,
            counted_input_tokens=prompt.counted_input_tokens,
            check=ready.check,
            asked=ready.asked,
            images=image_facts and image_facts.images,
            pixels=image_facts and image_facts.pixels,
        )

        def recorded(answer: Answer) -> None:
            self._served = answer.record.outcome is Outcome.OK
            if not turn and prompt.asked_input_tokens and answer.record.input_tokens:
                # Later turns contain answers, whose tokens are the server's own.
                traffic.workload.learn(prompt, answer.record.input_tokens)

        post = session.client.post
        if may_wait:
            return post(
                ready.form.path, ready.body, call, traffic.heads, patience_s=patience_s, recorded=recorded
            )
        answer = post(ready.form.path, ready.body, call, traffic.heads, patience_s=patience_s)
        recorded(answer)
        return answer


# --- A conversation: several requests, think time between them, the history carried on


class Dialogue:
    """One conversation of one user.

    Args:
        number: of this conversation among the user's.
        dialogues: source of the questions, drawn at random, instead of the workload's prompts.
        warm_up: as in :meth:`Requester.workload`.
        ask: sends a turn, as :meth:`Requester.ask` does.
    """

    def __init__(
        self,
        requester: Requester,
        plan: ConversationPlan,
        number: int,
        dialogues: Sequence[ShareGptConversation] = (),
        warm_up: bool | None = None,
        ask: Callable[..., Answer] | None = None,
    ) -> None:
        session = requester.session
        self._requester = requester
        self._ask = ask or requester.ask
        self._plan = plan
        self._dialogues = dialogues
        self._workload = requester.workload(warm_up)
        self._warm_up = warm_up
        self._place = ConversationId(requester.traffic.seed, session.worker_index, requester.number, number)
        self._script = self._first_script()
        self._turns = self._turn_count()
        self._id = session_name(session.client.new_request_id(), self._turns)
        self._manner = manner(plan, self._place)
        self._texts = islice(self._new_prompts(), self._turns)

    def opening(self) -> Prepared:
        """Prepare the first turn, for :meth:`hold`."""
        requester = self._requester
        prompt = requester.bounded(with_history(next(self._texts), (), self._script.lead))
        return requester.prepared(prompt, self._id)

    def hold(
        self,
        name: str | None = None,
        open_with: Callable[[str, float | None], Answer] | None = None,
    ) -> list[Answer]:
        """Hold it to its end; return the answers of its turns.

        It ends with its last turn, or with the first one that is not answered ``ok``: a request that failed,
        or a user who left.

        Args:
            open_with: sends :meth:`opening`, given the session's id and the user's patience in seconds.
        """
        answers: list[Answer] = []
        past: tuple[AnsweredTurn, ...] = ()
        if open_with is not None:
            opened = open_with(self._id, self._manner.patience_s)
            answers.append(opened)
            past = self._carried(past, self._script.turns[0], opened)
        for turn, new in enumerate(self._texts, len(answers)):
            if answers and answers[-1].record.outcome is not Outcome.OK:
                break
            if turn:
                gevent.sleep(next(self._manner.think_s))
            prompt = with_history(new, past, self._script.lead)
            answer = self._ask(
                prompt, name=name, session_id=self._id, turn=turn, patience_s=self._manner.patience_s
            )
            answers.append(answer)
            past = self._carried(past, new, answer)
        return answers

    def _carried(
        self, past: tuple[AnsweredTurn, ...], new: Prompt, answer: Answer
    ) -> tuple[AnsweredTurn, ...]:
        return carry_on(past, exchange(new, answer.reply.text, _answer_tokens(answer)), self._plan.carried)

    def _first_script(self) -> Script:
        if not self._dialogues:
            return script_of(self._requester.next_prompt(self._warm_up))
        unique = self._workload.spec.unique_head
        salt = self._requester.session.run["salt"] if unique else None
        return drawn_script(self._dialogues, self._place, salt)

    def _turn_count(self) -> int:
        own = len(self._script.turns)
        if self._dialogues or own > 1:
            return turn_count(self._plan, self._place, own, own)
        of_dataset = self._workload.spec.dataset is not None
        return turn_count(self._plan, self._place, own if of_dataset else DEFAULT_TURNS)

    def _new_prompts(self) -> Iterator[Prompt]:
        """New prompt of each turn, in order; at least as many as a conversation needs."""
        if self._workload.spec.dataset is None or self._dialogues:
            more = self._workload.follow_ups(self._place)
        else:
            more = (script_of(self._requester.next_prompt(self._warm_up)).turns[-1] for _ in repeat(None))
        return chain(self._script.turns, more)


def _answer_tokens(answer: Answer) -> int | None:
    """Tokens of the answer that the next turn may carry: the reasoning before it is not sent again."""
    record = answer.record
    if record.output_tokens is None:
        return None
    return max(0, record.output_tokens - (record.reasoning_tokens or 0))
