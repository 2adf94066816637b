"""User with conversations: several turns, think time between them, the history carried on."""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, count, islice, repeat
from typing import Any

import gevent
from locust.env import Environment

from llm_locust.client.recording import Answer
from llm_locust.core.record import Outcome
from llm_locust.figures.sessions import session_name
from llm_locust.swarm.users.requester import Prepared, Requester
from llm_locust.swarm.users.users import PromptUser
from llm_locust.workload.conversations import (
    DEFAULT_TURNS,
    AnsweredTurn,
    ConversationId,
    ConversationPlan,
    Script,
    carry_on,
    drawn_script,
    exchange,
    follow_ups,
    manner,
    parse_plan,
    script_of,
    turn_count,
    with_history,
)
from llm_locust.workload.datasets.sharegpt import ShareGptConversation
from llm_locust.workload.text.prompts import Prompt

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
        self._said = islice(self._sayings(), self._turns)

    def opening(self) -> Prepared:
        """Prepare the first turn, for :meth:`hold`."""
        requester = self._requester
        prompt = requester.bounded(with_history(next(self._said), (), self._script.lead))
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
        for turn, new in enumerate(self._said, len(answers)):
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
        self, past: tuple[AnsweredTurn, ...], said: Prompt, answer: Answer
    ) -> tuple[AnsweredTurn, ...]:
        return carry_on(past, exchange(said, answer.reply.text, _answer_tokens(answer)), self._plan.carried)

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

    def _sayings(self) -> Iterator[Prompt]:
        """New prompt of each turn, in order; at least as many as a conversation needs."""
        if self._workload.spec.dataset is None or self._dialogues:
            more = follow_ups(self._workload, self._place)
        else:
            more = (script_of(self._requester.next_prompt(self._warm_up)).turns[-1] for _ in repeat(None))
        return chain(self._script.turns, more)


def _answer_tokens(answer: Answer) -> int | None:
    """Tokens of the answer that the next turn may carry: the reasoning before it is not sent again."""
    record = answer.record
    if record.output_tokens is None:
        return None
    return max(0, record.output_tokens - (record.reasoning_tokens or 0))


class ConversationUser(PromptUser):
    """Holds conversations over chat completions.

    ::

        class Talk(ConversationUser):
            turns = "uniform:3,8"
            think_time = "exponential:5s"
            patience = "lognormal:8s,0.5"

            @task
            def talk(self) -> None:
                self.converse()

    The first message is the workload's next prompt; new texts of ``--input-tokens`` follow. With
    ``--dataset`` the user messages of a line are its turns; if lines have one question each, further turns
    use the next lines.

    Attributes:
        turns: number per conversation, in the grammar of ``--input-tokens``; None: as many as the
            dataset's has, else 5. A conversation of a dataset never has more than its own.
        think_time: between an answer's end and the next turn: ``2s``, ``uniform:1s,5s``,
            ``exponential:3s``, ``lognormal:MEDIAN,SIGMA``; None: no pause.
        patience: longest wait for a first token before the user leaves, drawn once a
            conversation; in the grammar of ``think_time``. None: unlimited.
        history: how much of the earlier turns each turn sends again: ``full``, ``last:N`` turns, or ``none``.
        dialogues: conversations whose questions are used, drawn at random with replacement, instead of
            the workload's prompts: ``load_conversations("sharegpt.json")``.
    """

    abstract = True
    turns: str | None = None
    think_time: str | None = None
    patience: str | None = None
    history: str = "full"
    dialogues: Sequence[ShareGptConversation] = ()
    plan = ConversationPlan()

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        cls.plan = parse_plan(
            turns=cls.turns, think_time=cls.think_time, patience=cls.patience, history=cls.history
        )

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self._conversations = count()

    def converse(self, *, name: str | None = None) -> list[Answer]:
        """Hold one conversation to its end; return the answers of its turns.

        It ends with its last turn, or with the first one that is not answered ``ok``: a request that failed,
        or a user who left.
        """
        number = next(self._conversations)
        return Dialogue(self.requester, self.plan, number, self.dialogues, ask=self.ask).hold(name)
