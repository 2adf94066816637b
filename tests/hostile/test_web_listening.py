"""Where the web UI listens, and what is said of it."""

from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection

import psutil
import pytest
from swarm_process import free_port, locust, wait_until

WARNING = "without --web-login: anyone who reaches it can start load"

#: Host names that are tried. Those of strangers, and one that a cluster's service may have.
NAMES = ("localhost", "127.0.0.1", "llm-locust-web", "ui.example", "evil.example")
FOREIGN = {"ui.example", "evil.example"}
ALL_FOREIGN = FOREIGN | {"llm-locust-web"}

WITH_A_NAME = ["--web-host", "*", "--web-name", "ui.example"]

#: Options, environment -> the address, whether there is a warning, and the names that are refused.
CASES: dict[str, tuple[list[str], dict[str, str], str, bool, set[str]]] = {
    "by default": ([], {}, "127.0.0.1", False, ALL_FOREIGN),
    "on all interfaces": (["--web-host", "*"], {}, "0.0.0.0", True, FOREIGN),
    "on all, by the environment": ([], {"LOCUST_WEB_HOST": "0.0.0.0"}, "0.0.0.0", True, FOREIGN),
    "on all, with a login": (["--web-host", "0.0.0.0", "--web-login"], {}, "0.0.0.0", False, set()),
    "on all, with a name": (WITH_A_NAME, {}, "0.0.0.0", True, ALL_FOREIGN - {"ui.example"}),
    "on another address of loopback": (["--web-host", "127.0.0.2"], {}, "127.0.0.2", False, ALL_FOREIGN),
}


def refused(address: str, port: int) -> set[str]:
    """The host names under which a web UI answers nobody."""
    found = set()
    for name in NAMES:
        connection = HTTPConnection(address, port, timeout=120)
        connection.request("POST", "/no-such-page", headers={"Host": f"{name}:{port}"})
        if connection.getresponse().status == 403:
            found.add(name)
        connection.close()
    return found


@pytest.fixture(scope="module")
def listening(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, list[str], set[str]]]:
    """The address that each listens on, what it said, and the host names that it refused."""
    folder = tmp_path_factory.mktemp("listening")

    def run(name: str) -> tuple[str, list[str], set[str]]:
        options, environ, address, *_ = CASES[name]
        port = free_port()
        with locust(folder, "--web-port", str(port), *options, environ=environ, stdout=name) as process:

            def addresses() -> list[str]:
                found = psutil.Process(process.pid).net_connections("tcp")
                return [c.laddr.ip for c in found if c.status == "LISTEN" and c.laddr.port == port]

            wait_until(lambda: bool(addresses()), "the web UI")
            warned = list(process.lines)
            return addresses()[0], warned, refused(address.replace("0.0.0.0", "127.0.0.1"), port)

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(CASES, pool.map(run, CASES), strict=True))


@pytest.mark.parametrize("case", list(CASES))
def test_it_listens_on_loopback_unless_told_and_warns_where_anyone_can_reach_it(
    listening: dict[str, tuple[str, list[str], set[str]]], case: str
) -> None:
    address, said, _ = listening[case]
    assert address.replace("::", "0.0.0.0") == CASES[case][2]
    assert sum(WARNING in line for line in said) == CASES[case][3], said


@pytest.mark.parametrize("case", list(CASES))
def test_names_that_a_strangers_page_can_have_are_refused_unless_there_is_a_login(
    listening: dict[str, tuple[str, list[str], set[str]]], case: str
) -> None:
    assert listening[case][2] == CASES[case][4]
