"""``llm-locust doctor``: checks of this machine and of a server, before a run."""

import argparse
import os
import sys

from llm_locust.client.http.target import Target
from llm_locust.doctor.checks import as_json, examine, exit_code, print_results
from llm_locust.doctor.finding import Examination
from llm_locust.options.requests import AccessSettings, access_headers, access_secrets, take_default_key
from llm_locust.report.output import one_line, printing
from llm_locust.wire.dialects import DIALECTS, GENERATING
from llm_locust.wire.foreign_text import is_key_name
from llm_locust.workload.body import body_template, parse_body
from llm_locust.workload.parts import parse_models

DESCRIPTION = (
    "Check this machine, and the server at URL if one is given: each check is ok, warn, fail or skipped, "
    "with what to change. Sends two short requests. Takes at most 30 s (with --calibrate 50 s). "
    "Exit code 2 if a check fails, else 0."
)

#: Users of one process by default: those of `llm-locust run`.
USERS = 10
_MOST_USERS = 1_000_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``llm-locust doctor``."""
    parser.add_argument("url", nargs="?", metavar="URL", help="the server, such as http://localhost:8000")
    parser.add_argument(
        "--users", type=_users, default=USERS, metavar="N", help="users of one process here (%(default)s)"
    )
    parser.add_argument(
        "--calibrate",
        action="store_true",
        help="stream from a server of known times on this machine, at --users, and show the client's error",
    )
    parser.add_argument(
        "--model", metavar="NAME", help="the model of the run (default: the first of the server's)"
    )
    parser.add_argument(
        "--models",
        metavar="SPLIT",
        help="several models or adapters, as in the run: each is asked for one token, the first as --model",
    )
    parser.add_argument(
        "--endpoint", choices=GENERATING, default="chat", help="the API of the requests (%(default)s)"
    )
    parser.add_argument(
        "--body", metavar="JSON", help="further fields of the requests, such as '{\"temperature\": 0}'"
    )
    for row in AccessSettings.rows().values():
        if row.kind == "truth":
            parser.add_argument(row.flag, action="store_true", help=row.help)
        else:
            action = "append" if row.kind == "list" else "store"
            parser.add_argument(row.flag, metavar=row.metavar, action=action, help=row.help)
    parser.add_argument("--json", action="store_true", help="print the results as JSON")


def run(args: argparse.Namespace) -> int:
    """Make the checks, and print their results. Return the exit code."""
    try:
        asked = _asked(args)
        results = examine(asked)
    except (ValueError, OSError) as e:
        print(f"llm-locust doctor: {one_line(e)}", file=sys.stderr)
        return 2
    with printing():
        if args.json:
            print(as_json(results))
        else:
            print_results(results, None if asked.target is None else asked.target.url, sys.stdout)
    return exit_code(results)


def _models(model: str | None, split: str | None) -> tuple[str | None, tuple[str, ...]]:
    """The model of all requests, and the further ones that are asked for one token each."""
    names = () if split is None else parse_models(split).names
    first, *others = names if model is None and names else (model, *names)
    return first, tuple(name for name in dict.fromkeys(others) if name is not None and name != first)


def _asked(args: argparse.Namespace) -> Examination:
    """The options' values (raises ValueError, which shows no secret)."""
    endpoint = DIALECTS[args.endpoint]
    take_default_key(args, os.environ)
    access = AccessSettings.of(args)
    key, own = access.api_key(os.environ), access.headers(os.environ)
    target = None if args.url is None else Target.parse(args.url)
    versioned = target is not None and bool(target.query)
    headers = access_headers(key, own, (endpoint,), versioned=versioned)
    body = {} if args.body is None else parse_body(args.body)
    body_template(endpoint, "", extra_body=body)
    model, others = _models(args.model, args.models)
    return Examination(
        users=args.users,
        calibrate=args.calibrate,
        target=target,
        model=model,
        others=others,
        endpoint=endpoint,
        body=body,
        headers=headers,
        has_key=key is not None or any(map(is_key_name, own)),
        secrets=access_secrets(key, own),
        ca_cert=access.ca_cert,
        client_cert=access.client_cert,
        tls_name=access.tls_name,
        insecure=access.insecure,
    )


def _users(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= _MOST_USERS:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 to {_MOST_USERS:,}, got {text!r}")
    return int(text)
