"""The texts of stored runs are those in ``expected``, byte for byte: a test names each line that changed."""

import re
from difflib import unified_diff

import pytest
from frozen_texts import EXPECTED, RUNS, every, outputs
from package_source import MODULES

import llm_locust

#: Lines of a difference that are shown; `make frozen` and `git diff` show all.
MOST_LINES = 60

#: A directory of a machine, or a secret.
MACHINES = re.compile(rb"/(home|root|tmp|work|usr|opt|var|mnt)/|site-packages|Bearer |sk-[0-9a-zA-Z]{8}")


@pytest.mark.parametrize("name", every())
def test_every_text_is_as_it_was(name: str) -> None:
    known = {path.name: path.read_text() for path in (EXPECTED / name).iterdir()}
    found = outputs(name)
    changed = [
        line
        for file in sorted(known.keys() | found.keys())
        if known.get(file) != found.get(file)
        for line in unified_diff(
            known.get(file, "").splitlines(),
            found.get(file, "").splitlines(),
            f"expected/{name}/{file}",
            "made now",
            n=1,
            lineterm="",
        )
    ]
    if changed:
        left = len(changed) - MOST_LINES
        more = [f"... and {left} more lines"] if left > 0 else []
        text = "\n".join([*changed[:MOST_LINES], *more])
        pytest.fail(f"{text}\n\nIf this is wanted: make frozen, and commit what it changes.", pytrace=False)


def test_no_folder_is_of_a_run_that_is_gone() -> None:
    assert {path.name for path in EXPECTED.iterdir()} == {*every()}


def test_a_run_names_no_directory_of_the_machine_that_made_it() -> None:
    files = [path for path in RUNS.rglob("*") if path.is_file()]
    assert {path for path in files if MACHINES.search(path.read_bytes())} == set()


def test_no_text_for_people_has_the_name_of_a_class_that_a_user_does_not_import() -> None:
    head = re.compile(r"^class ((?:[A-Z][a-z]+){2,})\b", re.MULTILINE)
    inner = {name for path in MODULES for name in head.findall(path.read_text())} - {*llm_locust.__all__}
    assert len(inner) > 300
    word = re.compile(r"\b(?:[A-Z][a-z]+){2,}\b")
    texts = (path for path in EXPECTED.rglob("*") if path.suffix in (".txt", ".md", ".csv"))
    assert {found for path in texts for found in word.findall(path.read_text())} & inner == set()
