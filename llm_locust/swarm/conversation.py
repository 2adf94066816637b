"""A user that talks: several turns, with thought between them and the history carried on."""

from collections.abc import Iterator, Sequence
from itertools import chain, islice, repeat
from typing import Any

import gevent
from locust.env import Environment

from llm_locust.client.stream import Answer
from llm_locust.metrics.sessions import session_name
from llm_locust.record import Outcome
from llm_locust.swarm.users import PromptUser
from llm_locust.workload.conversations import (
    DEFAULT_TURNS,
    ConversationPlan,
    Exchange,
    Manner,
    Place,
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
from llm_locust.workload.datasets.sharegpt import Conversation
from llm_locust.workload.prompts import Prompt


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

    What it says first is the workload's next prompt; then come new texts of ``--input-tokens``. With
    ``--dataset`` the messages of users in a line are its turns, one after another; where lines have one
    question each, further turns ask those of the lines that follow.

    Attributes:
        turns: how many a conversation has, as ``--input-tokens`` is written; None: as many as the
            dataset's has, else 5. A conversation of a dataset never has more than its own.
        think_time: between an answer's end and the next turn: ``2s``, ``uniform:1s,5s``,
            ``exponential:3s``, ``lognormal:MEDIAN,SIGMA``; None: no pause.
        patience: how long the user waits for a first token before they leave, drawn once a
            conversation; written as ``think_time``. None: for ever.
        history: what each turn sends again of those before: ``full``, ``last:N`` turns, or ``none``.
        dialogues: conversations whose questions are asked, drawn at random with replacement, instead of
            the workload's prompts: ``load_conversations("sharegpt.json")``.
    """

    abstract = True
    turns: str | None = None
    think_time: str | None = None
    patience: str | None = None
    history: str = "full"
    dialogues: Sequence[Conversation] = ()
    plan = ConversationPlan()

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        cls.plan = parse_plan(
            turns=cls.turns, think_time=cls.think_time, patience=cls.patience, history=cls.history
        )

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self._conversations = 0

    def converse(self, *, name: str | None = None) -> list[Answer]:
        """Hold one conversation to its end; the answers of its turns.

        It ends with its last turn, or with the first one that is not answered ``ok``: a request that
        failed, or a user who left.
        """
        place, plan = self._next_place(), self.plan
        script = self._script(place)
        turns = self._turn_count(script, place)
        session_id = session_name(self.session.client.new_request_id(), turns)
        how, past = manner(plan, place), tuple[Exchange, ...]()
        answers: list[Answer] = []
        for turn, new in enumerate(islice(self._said(script, place), turns)):
            if turn:
                gevent.sleep(next(how.think_s))
            answer = self._turn(with_history(new, past, script.lead), session_id, turn, how, name)
            answers.append(answer)
            if answer.record.outcome is not Outcome.OK:
                break
            past = carry_on(past, exchange(new, answer.reply.text, _answer_tokens(answer)), plan.carried)
        return answers

    def _turn(self, prompt: Prompt, session_id: str, turn: int, how: Manner, name: str | None) -> Answer:
        return self.ask(prompt, name=name, session_id=session_id, turn=turn, patience_s=how.patience_s)

    def _next_place(self) -> Place:
        session, number = self.session, self._conversations
        self._conversations += 1
        return Place(session.run["seed"], session.worker_index, self.number, number)

    def _script(self, place: Place) -> Script:
        """What is said first."""
        if not self.dialogues:
            return script_of(self.next_prompt())
        unique = self.session.workload(self.endpoint).spec.unique_head
        return drawn_script(self.dialogues, place, self.session.run["salt"] if unique else None)

    def _turn_count(self, script: Script, place: Place) -> int:
        own = len(script.turns)
        if self.dialogues or own > 1:
            return turn_count(self.plan, place, own, own)
        of_dataset = self.session.workload(self.endpoint).spec.dataset is not None
        return turn_count(self.plan, place, own if of_dataset else DEFAULT_TURNS)

    def _said(self, script: Script, place: Place) -> Iterator[Prompt]:
        """What is new in each turn, one after another; more of it than a conversation may need."""
        workload = self.session.workload(self.endpoint)
        if workload.spec.dataset is None or self.dialogues:
            more = follow_ups(workload, place)
        else:
            more = (script_of(self.next_prompt()).turns[-1] for _ in repeat(None))
        return chain(script.turns, more)


def _answer_tokens(answer: Answer) -> int | None:
    """Tokens of the answer that the next turn may carry: the reasoning before it is not sent again."""
    record = answer.record
    if record.output_tokens is None:
        return None
    return max(0, record.output_tokens - (record.reasoning_tokens or 0))
