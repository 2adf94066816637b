"""The list of a server's models: where it is looked for, and what is taken for one."""

from typing import Any

import pytest
from scripted import ScriptedServer, json_response, script_header, write

from llm_locust.client.http.pool import Pool
from llm_locust.client.http.target import Target
from llm_locust.client.probing import list_models

BOTH = ["/api/v1/models", "/api/models"]


@pytest.mark.parametrize(
    ("status", "body", "names", "asked"),
    [
        (200, {"data": [{"id": "a", "object": "model"}, {"id": "b"}]}, ["a", "b"], BOTH[:1]),
        (200, {"data": []}, [], BOTH[:1]),
        (200, {"data": [{"name": "a"}]}, None, BOTH),
        (200, {"data": [{"id": "a"}], "more": [0] * 70_000}, None, BOTH),  # would hold the loop
        (404, {"data": [{"id": "a"}]}, None, BOTH),
        (401, {"error": "no key"}, None, BOTH[:1]),
        (403, {"error": "no key"}, None, BOTH[:1]),
    ],
)
def test_models_are_listed_by_the_first_path_that_has_a_list_unless_access_is_refused(
    server: ScriptedServer, status: int, body: dict[str, Any], names: list[str] | None, asked: list[str]
) -> None:
    pool = Pool(Target.parse(f"{server.url.removesuffix('/v1')}/api/v1"), tls=None, connect_timeout_s=5)
    listing = list_models(pool, script_header([write(0, json_response(body, status))]), 120)
    assert (listing.names, listing.answer.status) == (names, status)
    assert (listing.base, listing.is_refused) == (pool.target.base, status in (401, 403))
    assert [request.path for request in server.wait_ended(len(asked))] == asked
