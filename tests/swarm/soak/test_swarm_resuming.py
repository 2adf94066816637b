"""What a sweep that goes on is compared with: the version that made its load, and the server."""

from argparse import Namespace
from pathlib import Path

import pytest
from metrics_cases import manifest, stage

from llm_locust.options.settings import UsageError, parse_settings
from llm_locust.store import create_run_dir, write_manifest
from llm_locust.swarm.channel.messages import RunInfo
from llm_locust.swarm.command_line import versions
from llm_locust.swarm.soak.input_files import changed, digests, input_files
from llm_locust.swarm.soak.resuming import check_server, differences

SWEEP = {"sweep": "rate=5,10"}


def found(version: str | None) -> list[str]:
    made = {} if version is None else {"llm-locust": version}
    settings = parse_settings(Namespace(**SWEEP), {})
    then = manifest(options=dict(settings.text), stages=[stage(0, 1.0, 4.0)], versions=made)
    return differences(then, settings, {})


@pytest.mark.parametrize("version", [None, versions()["llm-locust"]])
def test_the_same_sweep_differs_in_nothing(version: str | None) -> None:
    assert found(version) == []


def test_another_version_is_named_with_what_to_do() -> None:
    (text,) = found("0.0.1")
    assert text.startswith("llm-locust was 0.0.1, now ")
    assert text.endswith("install 0.0.1 again, or name another --out")


def test_each_file_that_the_load_is_made_of_is_compared_by_its_content(tmp_path: Path) -> None:
    data, lengths, own = (tmp_path / name for name in ("d.txt", "l.csv", "own.py"))
    folder = tmp_path / "prompts"
    folder.mkdir()
    (folder / "a.txt").write_text("hello")
    data.write_text("one\n")
    lengths.write_text("16\n")
    own.write_text("")

    def named(**options: str) -> dict[str, str]:
        return digests(input_files(parse_settings(Namespace(**SWEEP, **options), {}), [str(own)]))

    given = {"dataset": str(data), "output_tokens": f"file:{lengths}"}
    then = named(**given)
    assert then.keys() == {"own.py", str(data), str(lengths)}
    assert changed(then, named(**given)) == []
    for file in (data, lengths, own):
        before = file.read_text()
        file.write_text(before + "32\n")
        name = file.name if file is own else str(file)
        assert changed(then, named(**given)) == [f"the content of {name!r} is another one"]
        file.write_text(before)
    assert changed(then, named()) == [
        f"the file {str(file)!r} is not read any more" for file in (data, lengths)
    ]
    of_folder = named(dataset=str(folder))
    (folder / "a.txt").rename(folder / "b.txt")
    assert changed(of_folder, named(dataset=str(folder))) == [
        f"the content of {str(folder)!r} is another one"
    ]
    settings = parse_settings(Namespace(**SWEEP, **given), {})
    edited = manifest(options=dict(settings.text), stages=[stage(0, 1.0, 4.0)], files={**then, "own.py": "0"})
    assert differences(edited, settings, then) == ["the content of 'own.py' is another one"]


@pytest.mark.parametrize(("host", "says"), [("http://127.0.0.1:2", True), ("http://gateway", False)])
def test_a_simulator_at_a_new_port_says_how_to_keep_one(tmp_path: Path, host: str, says: bool) -> None:
    create_run_dir(tmp_path / "run")
    write_manifest(tmp_path / "run", manifest(host="http://127.0.0.1:1", options=SWEEP))
    info: RunInfo = {"host": host, "model": None}  # type: ignore[typeddict-item]
    with pytest.raises(UsageError) as raised:
        check_server([tmp_path / "run"], info)
    assert ("start `llm-locust sim` by itself" in str(raised.value)) is says
