"""What a sweep that goes on is compared with: the version that made its load, and the server."""

from argparse import Namespace
from pathlib import Path

import pytest
from metrics_cases import manifest, stage

from llm_locust.options.settings import UsageError, parse_settings
from llm_locust.store import create_run_dir, write_manifest
from llm_locust.swarm.channel.messages import RunInfo
from llm_locust.swarm.command_line import versions
from llm_locust.swarm.soak.resuming import check_server, differences

SWEEP = {"sweep": "rate=5,10"}


def found(version: str | None) -> list[str]:
    made = {} if version is None else {"llm-locust": version}
    settings = parse_settings(Namespace(**SWEEP), {})
    then = manifest(options=dict(settings.text), stages=[stage(0, 1.0, 4.0)], versions=made)
    return differences(then, settings)


@pytest.mark.parametrize("version", [None, versions()["llm-locust"]])
def test_the_same_sweep_differs_in_nothing(version: str | None) -> None:
    assert found(version) == []


def test_another_version_is_named_with_what_to_do() -> None:
    (text,) = found("0.0.1")
    assert text.startswith("llm-locust was 0.0.1, now ")
    assert text.endswith("install 0.0.1 again, or name another --out")


@pytest.mark.parametrize(("host", "says"), [("http://127.0.0.1:2", True), ("http://gateway", False)])
def test_a_simulator_at_a_new_port_says_how_to_keep_one(tmp_path: Path, host: str, says: bool) -> None:
    create_run_dir(tmp_path / "run")
    write_manifest(tmp_path / "run", manifest(host="http://127.0.0.1:1", options=SWEEP))
    info: RunInfo = {"host": host, "model": None}  # type: ignore[typeddict-item]
    with pytest.raises(UsageError) as raised:
        check_server([tmp_path / "run"], info)
    assert ("start `llm-locust sim` by itself" in str(raised.value)) is says
