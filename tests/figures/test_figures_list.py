"""The list of figures: what each line of it promises."""

from typing import get_type_hints

import msgspec
import pytest

from llm_locust.figures.summary import FIGURES, Summary


@pytest.mark.parametrize("name", [name for name, each in FIGURES.items() if each.compute is not None])
def test_a_figure_is_computed_as_the_type_of_its_key(name: str) -> None:
    assert get_type_hints(FIGURES[name].compute)["return"] == get_type_hints(Summary)[name]


def test_a_figure_is_a_key_of_the_summary() -> None:
    keys = {field.name for field in msgspec.structs.fields(Summary)}
    assert FIGURES.keys() <= keys
    assert len(FIGURES) > 20
