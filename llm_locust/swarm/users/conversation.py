"""User with conversations: several turns, think time between them, the history carried on."""

from collections.abc import Sequence
from itertools import count
from typing import Any

from locust.env import Environment

from llm_locust.client.stream import Answer
from llm_locust.swarm.users.dialogue import Dialogue
from llm_locust.swarm.users.users import PromptUser
from llm_locust.workload.conversations import ConversationPlan, parse_plan
from llm_locust.workload.datasets.sharegpt import ShareGptConversation


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
