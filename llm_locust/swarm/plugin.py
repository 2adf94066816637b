"""Effect of ``import llm_locust`` in a locustfile: options for Locust, and a role for each process.

A role's modules are imported once the process knows its role: a worker needs neither report nor web pages,
which take as long to import as all the rest.
"""

import sys
from typing import Any

import locust
from locust.argument_parser import LocustArgumentParser
from locust.env import Environment
from locust.runners import MasterRunner, WorkerRunner

from llm_locust.host import exhausted
from llm_locust.options.settings import UsageError
from llm_locust.options.table import add_arguments
from llm_locust.swarm.channel.channel import guard_channels
from llm_locust.swarm.process.early_signals import open_standard_files
from llm_locust.swarm.process.event_loop import interrupt_threads
from llm_locust.swarm.process.exits import (
    SIGNALS,
    end_with_parent,
    give_exits_back,
    leave,
    leave_once,
    meet_on_loopback,
    take_exits,
)
from llm_locust.swarm.process.log import attach_redactor, take_log
from llm_locust.swarm.process.patches import keep_bounded, keep_monitoring, spare_sources
from llm_locust.swarm.tracing_setup import attach_tracing
from llm_locust.swarm.users.users import users_join


def _on_parser(parser: LocustArgumentParser, **_: object) -> None:
    add_arguments(parser)
    parse = parser.parse_args

    def parse_args(*args: Any, **more: Any) -> Any:
        options = parse(*args, **more)
        meet_on_loopback(options, sys.argv)
        return options

    patched: Any = parser
    patched.parse_args = parse_args


def _on_init(environment: Environment, **_: object) -> None:
    attach_redactor(environment)
    try:
        if isinstance(environment.runner, WorkerRunner):
            _be_worker(environment)
        elif isinstance(environment.runner, MasterRunner):
            _be_master(environment)
        else:
            _be_all_in_one(environment)
    except Exception as e:
        if (reason := exhausted(e)) is not None:
            leave(UsageError(reason))
        raise
    interrupt_threads()
    keep_bounded(environment)
    spare_sources()
    give_exits_back(environment)
    leave_once(environment)


def _be_worker(environment: Environment) -> None:
    from llm_locust.swarm.roles.worker import WorkerRole

    role = WorkerRole(environment)
    end_with_parent()
    users_join(environment, role)
    SIGNALS.take = role.on_interrupt
    attach_tracing(environment)


def _be_master(environment: Environment) -> None:
    from llm_locust.swarm.roles.master import MasterRole

    SIGNALS.take = MasterRole(environment).on_interrupt
    attach_tracing(environment)
    _show(environment)


def _be_all_in_one(environment: Environment) -> None:
    from llm_locust.swarm.roles.local import LocalRole

    role = LocalRole(environment)
    users_join(environment, role)
    SIGNALS.take = role.on_interrupt
    attach_tracing(environment)
    _show(environment)


def _show(environment: Environment) -> None:
    from llm_locust.swarm.display import show_run

    show_run(environment)


guard_channels()
keep_monitoring()
if "locust.main" in sys.modules:  # elsewhere Locust is used as a library
    open_standard_files()
    take_exits()
    SIGNALS.take_over()
    take_log()
locust.events.init_command_line_parser.add_listener(_on_parser)
locust.events.init.add_listener(_on_init)
