"""A conversation: several requests, think time between them, the history carried on."""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice, repeat

import gevent

from llm_locust.client.stream import Answer
from llm_locust.core.record import Outcome
from llm_locust.metrics.sections.sessions import session_name
from llm_locust.swarm.users.requester import Prepared, Requester
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
    script_of,
    turn_count,
    with_history,
)
from llm_locust.workload.datasets.sharegpt import ShareGptConversation
from llm_locust.workload.text.prompts import Prompt


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
