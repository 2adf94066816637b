"""The list of models is under the same bounds as the run's own answers, and fit to be shown."""

from scripted import Step, response_head, scripted_server, write
from warm_process import warm_code

#: Locust patches the standard library when it is imported: in a process of its own.
CHECK = """
import sys
from locust.argument_parser import LocustArgumentParser
from llm_locust.options.parser import add_arguments
from llm_locust.swarm.run.preflight import check_target
from llm_locust.options.settings import UsageError, parse_settings
parser = LocustArgumentParser()
add_arguments(parser)
for url in sys.argv[1:]:
    try:
        print(check_target(url, parse_settings(parser.parse_args([]))), end="\\0")
    except UsageError as e:
        print("refused:", e, end="\\0")
"""


#: What is around many times the same bytes, and why it is refused.
LISTS = [
    (b"", b"x", 8 << 20, b"", "cannot be reached: the answer has more than 4 MiB"),
    (b'{"data":[{"id":"a"}', b',{"id":"a"}', 200_000, b"]}", "does not list its models: give --model"),
    (b'{"data":[],"later":', b"[", 100_000, b"", "does not list its models: give --model"),
    (
        b'{"data":[{"id":"\\u001b[31m',
        b"m",
        5_000,
        b'"}]}',
        "has 1 models, give --model NAME: \ufffd[31m",
    ),
    (b'{"data":[{"id":"a', b"\\n", 1, b'b"}]}', "has 1 models, give --model NAME: a\ufffdb"),
]


def test_a_list_of_models_is_bounded_and_fit_to_be_shown() -> None:
    head = response_head(content_type="application/json", chunked=False)
    routes = {
        f"/{i}/v1/models": [
            write(0, head + begin),
            Step(send_b64=unit, repeat=count),
            write(None, end),
            Step(close=True),
        ]
        for i, (begin, unit, count, end, _) in enumerate(LISTS)
    }
    with scripted_server(routes=routes) as server:
        printed = warm_code(CHECK, *(f"{server.url}/{i}" for i in range(len(LISTS))))
    said = printed.removesuffix("\0").split("\0")
    assert len(said) == len(LISTS)
    for text, (*_, why) in zip(said, LISTS, strict=True):
        assert text.startswith("refused: ")
        assert why in text
        assert text.isprintable()
        assert len(text) < 500
