"""What answers cost, and what one GPU gave."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
from metrics_cases import batch, failed, manifest, plain, request
from report_cases import summary, told
from summaries import faked, summarise, typed

from llm_locust.figures.cost import cost as cost_of, show as show_cost
from llm_locust.figures.text import Section, Tone
from llm_locust.metrics.question import PriceError, Prices, Question


def cost(*given: Any, **more: Any) -> Any:
    prices, seconds, figures = given
    served = SimpleNamespace(**figures["sessions"]) if figures["sessions"] else None
    rates = faked(figures["throughput"]), faked(figures["goodput"])
    found = cost_of(prices, seconds, *rates, served, **more)  # type: ignore[arg-type]
    return {} if found is None else plain(found)


#: Half an hour with 3,600 answers of 100 + 50 tokens, half of them good.
SECONDS = 1800.0
RATES = {"requests_per_s": 2.0, "input_tokens_per_s": 200.0, "output_tokens_per_s": 100.0}

GOOD: dict[str, Any] = {
    "slo": {"ttft": 500.0},
    "slo_by_class": {},
    "requests_per_s": 1.0,
    "output_tokens_per_s": 50.0,
}

NO_SLO: dict[str, Any] = {"slo": {}, "slo_by_class": {}, "requests_per_s": None, "output_tokens_per_s": None}
SESSIONS = {"n": 500, "completed": 360, "cut": 40, "failed": 60, "abandoned": 40}


def of(prices: Prices, of_selection: bool = False, **changed: Any) -> Any:
    figures: dict[str, Any] = {"throughput": RATES, "goodput": GOOD, "sessions": SESSIONS}
    return cost(prices, SECONDS, figures | changed, of_selection=of_selection)


def test_what_one_gpu_gives_needs_no_price() -> None:
    found = of(Prices(gpus=4))
    assert found["per_gpu"] == {
        "output_tokens_per_s": 25.0,
        "goodput_requests_per_s": 0.25,
        "goodput_output_tokens_per_s": 12.5,
    }
    assert found["missing"]["gpu"] == "gpu_hour_cost is not given"
    assert set(found["gpu"].values()) == {None}


def test_without_a_price_there_is_no_cost_at_all() -> None:
    assert of(Prices()) == {}


@pytest.mark.parametrize(
    ("changed", "figure", "lacks"),
    [
        ({"goodput": NO_SLO}, "per_good_request", "no SLO was given"),
        ({"goodput": NO_SLO}, "per_million_good_output_tokens", "no SLO was given"),
        ({"goodput": GOOD | {"requests_per_s": 0.0}}, "per_good_request", "no request was good"),
        ({"throughput": RATES | {"requests_per_s": 0.0}}, "per_request", "no request ended ok"),
        (
            {"throughput": RATES | {"input_tokens_per_s": None}},
            "per_million_input_tokens",
            "input tokens are unknown",
        ),
        ({"sessions": {}}, "per_session", "no request was a turn of a session"),
        (
            {"sessions": SESSIONS | {"completed": 0, "cut": 0}},
            "per_session",
            "every session failed or was abandoned",
        ),
    ],
)
def test_a_figure_without_a_base_is_none_and_says_what_is_missing(
    changed: dict[str, Any], figure: str, lacks: str
) -> None:
    found = of(Prices(gpu_hour_cost=1.0, gpus=1), **changed)
    assert found["gpu"][figure] is None
    assert found["missing"][figure] == lacks


@pytest.mark.parametrize(
    ("prices", "changed", "lacks"),
    [
        (Prices(input_token_price=1.0), {}, "output_token_price is not given"),
        (Prices(gpus=1), {}, "input_token_price and output_token_price are not given"),
        (
            Prices(input_token_price=1.0, output_token_price=1.0),
            {"throughput": RATES | {"output_tokens_per_s": None}},
            "input or output tokens are unknown",
        ),
    ],
)
def test_an_api_without_a_price_or_a_count_has_no_cost(
    prices: Prices, changed: dict[str, Any], lacks: str
) -> None:
    found = of(prices, **changed)
    assert found["api"]["total"] is None
    assert found["missing"]["api"] == lacks


def test_what_gpus_cost_is_not_shared_out_to_some_of_the_requests() -> None:
    prices = Prices(gpu_hour_cost=1.0, gpus=2, input_token_price=1.0, output_token_price=1.0)
    found = of(prices, of_selection=True)
    assert set(found["gpu"].values()) == set(found["per_gpu"].values()) == {None}
    assert "only some of the requests" in found["missing"]["gpu"]
    assert found["api"]["total"] == pytest.approx(0.54)


def test_limits_of_classes_alone_say_what_is_good_too() -> None:
    by_class = GOOD | {"slo": {}, "slo_by_class": {"fast": {"ttft": 100.0}, "": {}}, "requests_per_s": 0.0}
    found = of(Prices(gpu_hour_cost=1.0, gpus=1), goodput=by_class)
    assert found["missing"]["per_good_request"] == "no request was good"


def test_free_tokens_cost_nothing_and_that_is_no_unknown() -> None:
    found = of(Prices(input_token_price=0.0, output_token_price=0.0))
    assert found["api"]["total"] == found["api"]["per_request"] == 0.0


def test_prices_are_read_from_options_as_numbers_or_texts() -> None:
    options = {"gpu_hour_cost": "2.5", "gpus": 8, "input_token_price": "", "slo": "ttft=1s"}
    assert Prices.of_options(options) == Prices(gpu_hour_cost=2.5, gpus=8)


def test_what_is_given_stands_before_the_option_and_the_option_before_nothing() -> None:
    facts = manifest(slo="ttft=1s", options={"gpu_hour_cost": "3", "gpus": "2"})
    made = summarise(batch(request(), failed(1.0)), facts, Question(prices=Prices(gpus=4)))
    assert made["cost"]["prices"]["gpus"] == 4
    assert made["cost"]["gpu"]["per_request"] == pytest.approx(4 * 3 * made["window"]["seconds"] / 3600)
    assert summarise(batch(request()), manifest())["cost"] == {}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"gpu_hour_cost": "cheap"}, 'gpu_hour_cost is "cheap": write a number, as 2.5'),
        ({"gpu_hour_cost": -1}, "gpu_hour_cost is -1: write a number of 0 or more"),
        ({"input_token_price": math.nan}, "input_token_price is nan: write a number of 0 or more"),
        ({"gpus": "0"}, "gpus is 0: write how many GPUs the deployment has"),
        ({"gpus": [8]}, r'gpus is "\[8\]": write a number'),
    ],
)
def test_a_price_that_is_none_is_one_line_that_says_what_to_write(options: dict[str, Any], text: str) -> None:
    with pytest.raises(PriceError, match=text):
        Prices.of_options(options)


GPU = {"gpu_hour_cost": "2.5", "gpus": "8"}
API = {"input_token_price": "0.15", "output_token_price": "0.6"}


def section(**facts: Any) -> Section:
    found = show_cost(typed(summary(**facts)))
    assert found is not None
    return found


def cells(found: Section) -> dict[str, tuple[str, ...]]:
    assert found.table is not None
    return {row.cells[0]: row.cells[1:] for row in found.table.rows}


def test_without_prices_nothing_is_said() -> None:
    assert show_cost(told()) is None


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


def test_half_of_a_price_is_a_warning_that_names_the_other_half() -> None:
    found = section(options={"gpus": "1", "output_token_price": "1"})
    assert found.table is None
    assert found.lines[0].text.startswith("each of 1 GPU: ")
    assert [(line.text, line.tone) for line in found.notes] == [
        ("no cost by GPU: gpu_hour_cost is not given", Tone.WARN),
        ("no cost by API: input_token_price is not given", Tone.WARN),
    ]
