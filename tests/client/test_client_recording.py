"""Who answered, by the response's headers."""

import pytest

from llm_locust.client.recording import REPLICA_HEADERS, replica_of

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
