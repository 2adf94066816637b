"""What a master without the run's secret may have a worker import: code beside its locustfile."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from llm_locust.options.settings import UsageError
from llm_locust.scenario import TrafficClass, Validator
from llm_locust.scenario.request_kind import RequestKind, kinds_of
from llm_locust.swarm.process.own_code import check_named_functions, own_folders
from llm_locust.workload.lengths import parse_lengths
from llm_locust.workload.spec import WorkloadSpec

CHECKS = """
from functools import partial
from os import system

def is_short(answer, prompt):
    return len(answer) < 10

class Scorer:
    def __call__(self, answer, prompt):
        return True

scorer = Scorer()
bound = partial(system)
"""

PACKAGE = "from ownpack.inner import f\nfrom otherchecks import f as lent\n"

#: Says that it was imported.
TRAP = "from pathlib import Path\n(Path(__file__).parent / 'imported').touch()\ndef f(a, p): return True\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A locustfile's folder, and one beside it, both on Python's path."""
    before = set(sys.modules)
    own, other = tmp_path / "own", tmp_path / "other"
    for place in (own, own / "ownpack", other, other / "otherpack"):
        place.mkdir(parents=True)
    (own / "ownchecks.py").write_text(CHECKS)
    (own / "ownpack/__init__.py").write_text(
        "from ownpack.inner import f\nfrom otherchecks import f as lent\n"
    )
    (own / "ownpack/inner.py").write_text("def f(a, p): return True\n")
    (own / "spaces").mkdir()
    (own / "spaces/inner.py").write_text(TRAP)
    (other / "otherchecks.py").write_text(TRAP)
    (other / "otherpack/__init__.py").write_text(TRAP)
    (other / "otherpack/inner.py").write_text(TRAP)
    monkeypatch.syspath_prepend(str(other))
    monkeypatch.syspath_prepend(str(own))
    yield own
    for name in set(sys.modules) - before:
        del sys.modules[name]


def kinds(named: str) -> tuple[RequestKind, ...]:
    lengths = parse_lengths("8")
    validators = (Validator("contains", ("x",)), Validator("function", named))
    run = WorkloadSpec(input_tokens=lengths, output_tokens=lengths)
    return kinds_of([TrafficClass(name="a", request_name="", validators=validators)], run)


@pytest.mark.parametrize(
    "named", ["ownchecks:is_short", "ownchecks:scorer", "ownpack:f", "ownpack.inner:f", "ownchecks:no_such"]
)
def test_code_beside_the_locustfile_may_be_named(folder: Path, named: str) -> None:
    check_named_functions(kinds(named), own_folders([str(folder / "locustfile.py")], "/"))


@pytest.mark.parametrize(
    "named",
    [
        "os:system",
        "subprocess:run",
        "builtins:eval",
        "__main__:main",
        "no_such_module:f",
        "otherchecks:f",
        "otherpack:f",
        "otherpack.inner:f",
        "ownpack.no_such:f",
        "ownchecks.inner:f",
        "spaces.inner:f",
    ],
)
def test_no_other_module_is_imported(folder: Path, named: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_named_functions(kinds(named), own_folders([str(folder / "locustfile.py")], "/"))
    text = str(caught.value)
    assert "\n" not in text
    assert f"{named!r}" in text
    assert "--swarm-secret-env" in text
    assert not list(folder.parent.rglob("imported"))


@pytest.mark.parametrize("named", ["ownchecks:system", "ownchecks:bound", "ownpack:lent"])
def test_what_the_locustfiles_code_has_imported_is_not_lent_to_the_master(folder: Path, named: str) -> None:
    with pytest.raises(UsageError, match="not written in"):
        check_named_functions(kinds(named), own_folders([str(folder / "locustfile.py")], "/"))


def test_a_file_of_a_configmap_is_a_link_and_lies_where_the_link_does(folder: Path, tmp_path: Path) -> None:
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    (mounted / "linkedchecks.py").symlink_to(folder / "ownchecks.py")
    sys.path.insert(0, str(mounted))
    try:
        check_named_functions(kinds("linkedchecks:is_short"), own_folders([str(mounted / "l.py")], "/"))
    finally:
        sys.path.remove(str(mounted))


def test_the_working_directory_counts_where_the_locustfile_lies_in_it(tmp_path: Path) -> None:
    project = tmp_path / "project"
    (project / "locustfiles").mkdir(parents=True)
    path = str(project / "locustfiles/chat.py")
    real = str(project.resolve())
    assert own_folders([path], str(project)) == (f"{real}/locustfiles", real)
    assert own_folders([path], str(tmp_path / "elsewhere")) == (f"{real}/locustfiles",)
    assert own_folders([], str(project)) == ()
