"""Users of all public protocols in one process, each with its session and none with a run directory.

``python protocol_loads.py URL FOLDER SECONDS NAME...``: each protocol sends its requests to ``URL`` for
``SECONDS``, beside each other, and leaves its records as ``FOLDER/NAME.frames``. Loads are small. A ladder or
a search is its first load. Whole runs of all are ``make presets``.
"""

import secrets
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import gevent
from locust.argument_parser import parse_options
from locust.env import Environment
from locust.event import Events
from parsed_settings import run_info
from protocol_files import needed_files

import llm_locust.swarm.plugin  # noqa: F401  # its options
from llm_locust.locustfiles.agents import Agent
from llm_locust.locustfiles.scenario import Scenario
from llm_locust.swarm.channel.messages import RunInfo, StagedMessage
from llm_locust.swarm.process.health import Health
from llm_locust.swarm.roles.load_generator import LoadGenerator
from llm_locust.swarm.users.open_loop import ORIGIN_DELAY_S
from llm_locust.swarm.users.users import users_join

#: A small load of each: one user, or a request a second, with short answers.
SMALL = ("--warmup=0s", "--output-tokens=16")
RATE = "1"


@dataclass
class Alone:
    """A process without a master, as the host of a load generator."""

    drain_hint: str = ""
    refused: list[str] = field(default_factory=list)

    def place(self, _: RunInfo) -> tuple[int, int]:
        return 0, 1

    def vet(self, _: object) -> None:
        pass

    def offset(self) -> tuple[int, int]:
        return 0, 0

    def clock_facts(self) -> None:
        return None

    def tell_staged(self, _: StagedMessage) -> None:
        raise AssertionError("no load of a ladder")

    def refuse(self, reason: str) -> None:
        self.refused.append(reason)


class Load:
    """The users of one protocol."""

    def __init__(self, name: str, url: str, folder: Path) -> None:
        needs = needed_files(name, folder)
        files = [f"--{option}={path}" for option, path in needs.items()]
        sys.argv = ["locust", f"--scenario={name}", "--headless", f"--host={url}", *SMALL, *files]
        options = parse_options(sys.argv[1:])
        is_open = options.request_rate is not None or str(options.sweep).startswith("rate=")
        options.sweep = options.find = None
        options.request_rate = RATE if is_open else None
        self._name, self._url, self._path = name, url, folder / f"{name}.frames"
        kind = Agent if "trajectories" in needs else Scenario
        self._environment = Environment(
            user_classes=[type(kind.__name__, (kind,), {})], events=Events(), host=url, parsed_options=options
        )
        self._runner = self._environment.create_local_runner()
        self._host = Alone()
        self._frames: list[bytes] = []
        self._users = LoadGenerator(
            self._environment, name, lambda _, frame: self._frames.append(frame), Health(), self._host
        )
        users_join(self._environment, self._users)

    def begin(self) -> None:
        self._users.begin(_facts(self._name, self._url))
        self._runner.start(1, 1)

    def admit_no_more(self) -> None:
        self._users.admit_no_more()

    def end(self) -> None:
        """Wait for what is in flight, and write the records."""
        self._users.drain()
        self._runner.quit()
        self._users.close()
        if self._host.refused:
            raise SystemExit(f"{self._name}: {self._host.refused}")
        self._path.write_bytes(b"".join(self._frames))


def _facts(name: str, url: str) -> RunInfo:
    return run_info(
        id=name,
        seed=1,
        host=url,
        base="/v1",
        model="sim",
        salt=secrets.token_hex(4),
        path="",
        origin_ns=time.time_ns() + round(ORIGIN_DELAY_S * 1e9),
    )


if __name__ == "__main__":
    _url, _folder, _seconds, *_names = sys.argv[1:]
    _loads = [Load(name, _url, Path(_folder)) for name in _names]
    for _step in (Load.begin, Load.admit_no_more):
        for _load in _loads:  # one after the other, so that none waits for the beginning of all
            _step(_load)
            gevent.sleep(float(_seconds) / len(_loads))
        print("done:", _step.__name__, file=sys.stderr, flush=True)
    for _load in _loads:
        _load.end()
