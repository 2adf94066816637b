"""What ``import llm_locust`` in a locustfile adds to Locust: options, and a side for each process."""

import signal
from typing import TYPE_CHECKING

import gevent
import locust
from locust.argument_parser import LocustArgumentParser
from locust.env import Environment
from locust.runners import MasterRunner, WorkerRunner

from llm_locust.swarm.local import LocalSide
from llm_locust.swarm.master import MasterSide
from llm_locust.swarm.options import add_arguments
from llm_locust.swarm.worker import WorkerSide

if TYPE_CHECKING:
    from llm_locust.swarm.session import Session

#: Where an environment keeps its side. Locust's environments are the only state that outlives a call.
_ATTRIBUTE = "llm_locust"


def session_of(environment: Environment) -> "Session | None":
    """The session that a new user joins; None on a master, before a run, and once the run is stopping."""
    side = vars(environment).get(_ATTRIBUTE)
    session = side.session if isinstance(side, WorkerSide | LocalSide) else None
    return None if session is None or session.stopping else session


def _on_parser(parser: LocustArgumentParser, **_: object) -> None:
    add_arguments(parser)


def _interrupt_main() -> None:
    gevent.get_hub().handle_system_error(KeyboardInterrupt, KeyboardInterrupt())


def _on_init(environment: Environment, **_: object) -> None:
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # Python's own handler raises in whatever greenlet is running: the one that stops the load, for
        # one, which then never ends it. This one raises where Locust expects it, and only there.
        gevent.signal_handler(signal.SIGINT, _interrupt_main)
    runner = environment.runner
    side: WorkerSide | MasterSide | LocalSide
    if isinstance(runner, WorkerRunner):
        side = WorkerSide(environment)
    elif isinstance(runner, MasterRunner):
        side = MasterSide(environment)
    else:
        side = LocalSide(environment)
    setattr(environment, _ATTRIBUTE, side)


locust.events.init_command_line_parser.add_listener(_on_parser)
locust.events.init.add_listener(_on_init)
