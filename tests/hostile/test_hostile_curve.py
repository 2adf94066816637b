"""The run's secret: who does not know it takes no part, and what was sent can neither be read nor used."""

from pathlib import Path

import pytest
import zmq.green as zmq
from warm_process import warm_code

from llm_locust.options.settings import UsageError
from llm_locust.swarm.channel.curve import derive_keys, secret_of

SECRET = b"sixteen bytes at least"


def test_a_secret_comes_from_the_environment_and_is_never_shown() -> None:
    assert secret_of("S", {"S": " 0123456789abcdef\n"}) == b"0123456789abcdef"
    for environ in ({}, {"S": ""}, {"S": "tooshortsecret"}):
        with pytest.raises(UsageError, match="swarm-secret-env") as caught:
            secret_of("S", environ)
        assert "tooshortsecret" not in str(caught.value)


def test_the_keys_are_the_secrets_alone_differ_in_their_roles_and_are_never_shown() -> None:
    keys = derive_keys(SECRET)
    assert keys == derive_keys(SECRET)
    other = derive_keys(SECRET + b"!")
    pairs = (keys.master, keys.worker, other.master, other.worker)
    every = [key for pair in pairs for key in (pair.public, pair.secret)]
    assert len(set(every)) == len(every)
    assert all(key.decode() not in repr(keys) for key in every)


def test_an_installation_without_curve_is_refused_with_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zmq, "has", lambda _: False)
    with pytest.raises(UsageError, match="built here without CURVE; pip install") as caught:
        derive_keys(SECRET)
    assert "\n" not in str(caught.value)


#: Locust patches the process that imports it: what is about its channel has a process of its own.
PATCHED = """
import contextlib, sys
import pytest
with contextlib.redirect_stdout(sys.stderr):
    sys.exit(pytest.main(["-q", "-x", "--noconftest", "-p", "no:cacheprovider", "-Wignore", *sys.argv[1:]]))
"""


def test_both_ends_of_the_channel() -> None:
    warm_code(PATCHED, str(Path(__file__).parent / "channel_cases.py"))
