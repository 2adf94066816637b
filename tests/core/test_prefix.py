"""What a stage of the prefix-cache experiment knows of a replica's cache."""

import pytest

from llm_locust.core.manifest import ReplicaCache


@pytest.mark.parametrize(
    ("after", "again", "shows"),
    [
        (0, 512, True),
        (None, 512, True),
        (512, 512, False),
        (0, 0, False),
        (0, None, False),
        (None, None, False),
    ],
)
def test_a_flush_is_shown_by_a_prompt_that_is_found_only_when_it_is_sent_again(
    after: int | None, again: int | None, shows: bool
) -> None:
    assert ReplicaCache(target="http://a", after=after, again=again).shows_flush == shows
