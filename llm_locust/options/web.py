"""The options of the web UI beside Locust's own."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from llm_locust.client.http.target import Target
from llm_locust.options.types import Append, checked

if TYPE_CHECKING:
    from locust.argument_parser import LocustArgumentParser

#: Where the web UI listens unless ``--web-host`` says otherwise: without a login it starts load for anyone.
DEFAULT_WEB_HOST = "127.0.0.1"


def add_web_arguments(add: Callable[..., None]) -> None:
    add(
        "--allow-host",
        action=Append,
        default=[],
        type=checked(Target.parse),
        metavar="URL",
        help="a host that the web UI's form may name, beside those of the command line, the scenario and the "
        "locustfile: load and keys go to no other (repeatable)",
    )
    add(
        "--web-name",
        action=Append,
        default=[],
        metavar="NAME",
        help="host name under which the web UI is reached, such as an ingress's, beside addresses and "
        "localhost; other names are then refused (repeatable)",
    )


def listen_on_loopback(parser: "LocustArgumentParser") -> None:
    """Make loopback the default of ``--web-host``; Locust's own is all interfaces."""
    if any(action.dest == "web_host" for action in parser._actions):
        parser.set_defaults(web_host=DEFAULT_WEB_HOST)
