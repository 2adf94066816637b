"""Options of the web UI beside Locust's own."""

from llm_locust.client.http.target import Target
from llm_locust.options.option import Option

#: Where the web UI listens unless ``--web-host`` says otherwise: without a login it starts load for anyone.
DEFAULT_WEB_HOST = "127.0.0.1"

WEB = (
    Option(
        "--allow-host",
        "another host for the web UI's form, besides those of the command line, the scenario and the "
        "locustfile: load and keys go to no other (repeatable)",
        Target.parse,
        "URL",
        kind="list",
        scope=None,
        record=None,
    ),
    Option(
        "--web-name",
        "host name under which the web UI is reached, such as an ingress's, besides addresses and "
        "localhost; other names are then refused (repeatable)",
        metavar="NAME",
        kind="list",
        scope=None,
        record=None,
    ),
)
