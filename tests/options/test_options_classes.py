"""What the command line says of every class's keys, beside the top level of a scenario and its classes."""

from typing import Any

import pytest
from parsed_settings import settings_of

from llm_locust.workload.spec import WorkloadSpec

TOP = """
models: {base: 1, lora-a: 2}
shared_prefix: {groups: 4, tokens: 2000}
unique_head: false
"""
CLASSES = """
classes:
  plain: {}
  own: {models: lora-c, shared_prefix: {groups: 7, tokens: 70}, unique_head: true}
"""


def specs(text: str, **given: Any) -> list[WorkloadSpec]:
    return [kind.spec for kind in settings_of(text, **given).kinds]


def told(spec: WorkloadSpec) -> tuple[tuple[str, ...], int, bool]:
    assert spec.models is not None
    assert spec.shared_prefix is not None
    return spec.models.names, spec.shared_prefix.groups, spec.unique_head


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        ({}, (("base", "lora-a"), 4, False)),
        ({"models": "x,y"}, (("x", "y"), 4, False)),
        ({"shared_prefix": "groups=9 tokens=90"}, (("base", "lora-a"), 9, False)),
        ({"unique_head": "on"}, (("base", "lora-a"), 4, True)),
        ({"unique_head": "off", "models": ""}, (("base", "lora-a"), 4, False)),
    ],
)
def test_options_win_over_the_top_level_and_not_over_a_class(given: dict[str, str], plain: Any) -> None:
    assert [told(spec) for spec in specs(TOP, **given)] == [plain]
    assert [told(spec) for spec in specs(TOP + CLASSES, **given)] == [plain, (("lora-c",), 7, True)]


def test_without_a_top_level_options_are_of_the_classes_that_say_nothing() -> None:
    of_plain, of_own = specs(CLASSES, models="x", unique_head="off", shared_prefix="groups=9 tokens=90")
    assert told(of_plain) == (("x",), 9, False)
    assert told(of_own) == (("lora-c",), 7, True)
