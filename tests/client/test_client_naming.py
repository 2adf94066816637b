"""Who answered, by the response's headers, and how many values each of them had."""

import msgspec
import pytest

from llm_locust.client.recording import REPLICA_HEADERS, ReplicaNames, replica_of
from llm_locust.core.manifest import MOST_HEADER_VALUES, MOST_REPLICA_HEADERS, HeaderFacts

NAMES = [name.encode() for name in ("x-mine", *REPLICA_HEADERS)]


@pytest.mark.parametrize("name", REPLICA_HEADERS)
def test_a_known_header_names_the_replica(name: str) -> None:
    assert replica_of({b"date": b"today", name.encode(): b"pod-7"}, NAMES) == "pod-7"


def test_the_users_own_header_comes_first_and_without_any_there_is_no_name() -> None:
    assert replica_of({b"x-served-by": b"cache", b"x-mine": b"pod-7"}, NAMES) == "pod-7"
    assert replica_of({b"server": b"nginx"}, NAMES) is None


@pytest.mark.parametrize(
    ("value", "replica"),
    [
        ("10.0.0.1:8000, 10.0.0.2:8000", "10.0.0.2:8000"),
        ("10.0.0.1:8000, 10.0.0.2:8000, 10.0.0.3:8000", "10.0.0.3:8000"),
        ("10.0.0.1:8000 : 10.0.0.2:8000", "10.0.0.2:8000"),
        ("10.0.0.1:8000, 10.0.0.1:8001 : vllm-1.vllm:8000", "vllm-1.vllm:8000"),
        ("[fd00::1]:8000, [fd00::2]:8000", "[fd00::2]:8000"),
        ("unix:/run/a.sock, unix:/run/b.sock", "unix:/run/b.sock"),
    ],
)
def test_of_the_addresses_that_nginx_tried_in_turn_the_last_one_answered(value: str, replica: str) -> None:
    assert replica_of({b"x-upstream": value.encode()}, NAMES) == replica


@pytest.mark.parametrize(
    "value",
    ["10.0.0.1:8000", "vllm-0", "http://10.0.0.1:8000/v1", "cache-fra1, cache-lhr2", "a, 10.0.0.1:80", ""],
)
def test_any_other_value_is_the_name_as_it_stands(value: str) -> None:
    assert replica_of({b"x-upstream": value.encode()}, NAMES) == value


def test_each_header_of_an_answer_is_counted_and_the_first_names_the_replica() -> None:
    names = ReplicaNames(["X-Mine"], ["a-secret-key"])
    for n in range(6):
        answer = {b"x-served-by": b"lb-a-secret-key", b"x-upstream": b"10.0.0.9:80, 10.0.0.%d:80" % (n % 3)}
        assert names.read(answer) == "lb-***"
    assert names.read({b"server": b"nginx"}) is None
    (same, three) = names.facts()
    assert (same.name, same.answers, same.value, len(same.values)) == ("x-served-by", 6, "lb-***", 1)
    assert (three.name, three.answers, three.value, len(three.values)) == (
        "x-upstream",
        6,
        "10.0.0.0:80",  # the one that answered, of those tried in turn
        3,
    )
    names.read({b"x-mine": b"pod-1"})
    assert [each.name for each in names.facts()] == ["x-mine", "x-served-by", "x-upstream"]


def test_what_servers_may_send_is_bounded_and_can_be_written() -> None:
    names = ReplicaNames([f"x-{n}-{'y' * 300}" for n in range(40)])
    for n in range(200):
        names.read(dict.fromkeys(names.names, b"\xff\x00\x1b%d%b" % (n, b"z" * 5000)))
    found = names.facts()
    assert len(found) == MOST_REPLICA_HEADERS
    for each in found:
        assert (len(each.values), each.more, each.answers) == (MOST_HEADER_VALUES, True, 200)
    assert msgspec.json.decode(msgspec.json.encode(found), type=list[HeaderFacts]) == found


def test_a_secret_that_came_later_is_blanked_too() -> None:
    names = ReplicaNames(["x-mine"], ["a-secret-key"])
    assert names.read({b"x-mine": b"pod-another-key"}, ("a-secret-key", "another-key")) == "pod-***"
    assert [facts.value for facts in names.facts()] == ["pod-***"]
