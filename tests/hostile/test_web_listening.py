"""Where the web UI listens, and what is said of it."""

from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
from swarm_process import free_port, locust, wait_until

pytestmark = pytest.mark.alone

WARNING = "without --web-login: whoever reaches it can start load"

CASES: dict[str, tuple[list[str], dict[str, str], str, bool]] = {
    "by default": ([], {}, "127.0.0.1", False),
    "on all interfaces": (["--web-host", "*"], {}, "0.0.0.0", True),
    "on all, by the environment": ([], {"LOCUST_WEB_HOST": "0.0.0.0"}, "0.0.0.0", True),
    "on all, with a login": (["--web-host", "0.0.0.0", "--web-login"], {}, "0.0.0.0", False),
    "on another address of loopback": (["--web-host", "127.0.0.2"], {}, "127.0.0.2", False),
}


@pytest.fixture(scope="module")
def listening(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, list[str]]]:
    """The address that each listens on, and what it said."""
    folder = tmp_path_factory.mktemp("listening")

    def run(name: str) -> tuple[str, list[str]]:
        options, environ, _, _ = CASES[name]
        port = free_port()
        with locust(folder, "--web-port", str(port), *options, environ=environ, stdout=name) as process:

            def addresses() -> list[str]:
                found = psutil.Process(process.pid).net_connections("tcp")
                return [c.laddr.ip for c in found if c.status == "LISTEN" and c.laddr.port == port]

            wait_until(lambda: bool(addresses()), "the web UI")
            return addresses()[0], list(process.lines)

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(CASES, pool.map(run, CASES), strict=True))


@pytest.mark.parametrize("case", list(CASES))
def test_it_listens_on_loopback_unless_told_and_warns_where_anyone_can_reach_it(
    listening: dict[str, tuple[str, list[str]]], case: str
) -> None:
    address, said = listening[case]
    assert address.replace("::", "0.0.0.0") == CASES[case][2]
    assert sum(WARNING in line for line in said) == CASES[case][3], said
