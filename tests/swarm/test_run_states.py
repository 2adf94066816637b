"""docs/run-states.md names every message and the bounds of every wait, as the code has them."""

from pathlib import Path

from llm_locust.options.table import OPTION
from llm_locust.swarm.channel import messages
from llm_locust.swarm.delivery.collector import SETTLE_WITHIN_S
from llm_locust.swarm.delivery.shipping import RESEND_AFTER_S

PAGE = Path(__file__).parents[2].joinpath("docs", "run-states.md").read_text()


def test_the_page_has_every_message() -> None:
    texts = (value for value in vars(messages).values() if isinstance(value, str))
    kinds = {text for text in texts if text.startswith("llm_") and "." not in text}
    assert len(kinds) > 15
    assert {kind for kind in kinds if kind not in PAGE} == set()


def test_the_page_has_the_bounds_of_the_code() -> None:
    assert f"`--drain` ({OPTION['drain'].default})" in PAGE
    assert f"disk {SETTLE_WITHIN_S:g} s" in PAGE
    assert f"sent again after {RESEND_AFTER_S:g} s" in PAGE
