"""What ``import llm_locust`` in a locustfile adds to Locust: options, and a side for each process."""

from typing import TYPE_CHECKING

import locust
from locust.argument_parser import LocustArgumentParser
from locust.env import Environment
from locust.runners import MasterRunner, WorkerRunner

from llm_locust.core.manifest import NodeHealth
from llm_locust.options.table import add_arguments
from llm_locust.swarm.channel.securing import end_with_parent, guard_channels
from llm_locust.swarm.live.roles import attach
from llm_locust.swarm.process.bounds import keep_bounded
from llm_locust.swarm.process.hush import attach_hush
from llm_locust.swarm.process.signals import Interrupts, leave_once, look_at_the_stack
from llm_locust.swarm.run.local import LocalRole
from llm_locust.swarm.run.master import MasterRole
from llm_locust.swarm.run.progress import show_progress
from llm_locust.swarm.run.worker import WorkerRole
from llm_locust.swarm.tracing.setup import attach_tracing
from llm_locust.swarm.web.extension import extend

if TYPE_CHECKING:
    from llm_locust.swarm.users.session import Session

#: Where an environment keeps its side. Locust's environments are the only state that outlives a call.
_ATTRIBUTE = "llm_locust"


def session_of(environment: Environment) -> "Session | None":
    """The session that a new user joins; None on a master, before a run, and once the run is stopping."""
    side = vars(environment).get(_ATTRIBUTE)
    session = side.session if isinstance(side, WorkerRole | LocalRole) else None
    return None if session is None or session.stopping else session


def _on_parser(parser: LocustArgumentParser, **_: object) -> None:
    add_arguments(parser)


def _on_init(environment: Environment, **_: object) -> None:
    interrupts = Interrupts()
    attach_hush(environment)
    runner = environment.runner
    side: WorkerRole | MasterRole | LocalRole
    if isinstance(runner, WorkerRunner):
        side = WorkerRole(environment)
        end_with_parent()
    elif isinstance(runner, MasterRunner):
        side = MasterRole(environment)
    else:
        side = LocalRole(environment)
    setattr(environment, _ATTRIBUTE, side)
    interrupts.take = side.on_interrupt
    attach_tracing(environment)
    # After the side, whose listeners come first: it begins and ends the run that is looked at.
    store = attach(
        environment,
        session=lambda: side.session if isinstance(side, LocalRole) else None,
        health=lambda: side.health if isinstance(side, LocalRole) else NodeHealth(),
        stopped_ago_s=lambda: None if isinstance(side, WorkerRole) else side.stopped_ago_s,
    )
    show_progress(environment, store, getattr(environment.parsed_options, "progress", None) or "auto")
    extend(environment, store)
    keep_bounded(environment)
    look_at_the_stack()
    leave_once(environment)


guard_channels()
locust.events.init_command_line_parser.add_listener(_on_parser)
locust.events.init.add_listener(_on_init)
