"""What a report says of costs, and where it says nothing."""

from typing import Any

from report_cases import summary, told

from llm_locust.figures.cost import show as cost
from llm_locust.figures.section import Section, Tone
from llm_locust.figures.summary import typed

GPU = {"gpu_hour_cost": "2.5", "gpus": "8"}
API = {"input_token_price": "0.15", "output_token_price": "0.6"}


def section(**facts: Any) -> Section:
    found = cost(typed(summary(**facts)))
    assert found is not None
    return found


def cells(found: Section) -> dict[str, tuple[str, ...]]:
    assert found.table is not None
    return {row.cells[0]: row.cells[1:] for row in found.table.rows}


def test_without_prices_nothing_is_said() -> None:
    assert cost(told()) is None


def test_gpus_and_tokens_stand_side_by_side() -> None:
    found = section(options={**GPU, **API})
    assert [line.text for line in found.lines] == [
        "8 GPUs at 2.50 per hour, over the 10.0 s of the window",
        "API: 0.150 for 1M input tokens · 0.600 for 1M output tokens",
        "each of 8 GPUs: 0.637 good requests/s · 3.19 good output tokens/s · 5.94 output tokens/s",
    ]
    assert found.table is not None
    assert [column.head for column in found.table.columns] == ["For", "by GPU", "by API"]
    # 20 an hour for 10 s; 95 answers of 10 + 5 tokens, 51 of them good.
    assert cells(found) == {
        "the window": ("0.0556", "0.00043"),
        "1,000 requests": ("0.585", "0.0045"),
        "1,000 good requests": ("1.09", "0.00838"),
        "1M input tokens": ("58.5", "0.450"),
        "1M output tokens": ("117", "0.900"),
        "1M good output tokens": ("218", "1.68"),
    }
    assert found.notes == ()


def test_only_what_was_asked_for_has_a_column() -> None:
    found = section(options=API)
    assert found.table is not None
    assert [column.head for column in found.table.columns] == ["For", "by API"]
    assert found.notes == ()


def test_half_of_a_price_is_a_warning_that_names_the_other_half() -> None:
    found = section(options={"gpus": "1", "output_token_price": "1"})
    assert found.table is None
    assert found.lines[0].text.startswith("each of 1 GPU: ")
    assert [(line.text, line.tone) for line in found.notes] == [
        ("no cost by GPU: gpu_hour_cost is not given", Tone.WARN),
        ("no cost by API: input_token_price is not given", Tone.WARN),
    ]


def test_without_an_slo_the_cost_of_good_requests_is_missing_and_said_so() -> None:
    found = section(options=GPU, slo="")
    assert "1,000 good requests" not in cells(found)
    assert [line.text for line in found.notes] == ["no cost of good requests: no SLO was given"]
