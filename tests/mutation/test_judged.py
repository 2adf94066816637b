"""The table of changes that nothing can be seen of is about lines that are there."""

import tomllib
from pathlib import Path

import pytest
from operators import mutants

HERE = Path(__file__).parent
PACKAGE = HERE.parents[1] / "llm_locust"
JUDGED = tomllib.loads((HERE / "judged.toml").read_text())["equivalent"]


@pytest.mark.parametrize("entry", JUDGED, ids=lambda e: f"{e['file']}: {e['before'][:40]}")
def test_a_judged_change_can_still_be_made_and_has_its_reason(entry: dict[str, str]) -> None:
    assert entry.keys() == {"file", "before", "after", "why"}
    source = (PACKAGE / entry["file"]).read_text()
    assert entry["before"] in " ".join(line.strip() for line in source.splitlines())


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("x = a < b", ["x = a <= b"]),
        ("x = a + 1", ["x = a - 1", "x = a + 2", "x = a + (0)"]),
        (
            "if a and b:\n    f()",
            ["if not (a and b):\n    f()", "if a or b:\n    f()", "if a and b:\n    pass"],
        ),
        ("def f() -> int:\n    '''Text.'''\n    return not a", None),
        ("raise ValueError(1 + 1)", []),
        ("x: Literal[1] = f'{1 + 1}'", []),
        ("x = np.searchsorted(a, b, side='left')", ["x = np.searchsorted(a, b, side='right')"]),
    ],
)
def test_each_operator_makes_one_change_of_source_that_can_be_read(
    source: str, found: list[str] | None
) -> None:
    made = [mutant.applied(source) for mutant in mutants(source)]
    for text in made:
        compile(text, "mutant", "exec")
    assert found is None or made == found
    assert source not in made
