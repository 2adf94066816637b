"""What servers say of themselves, in the live store and in its series."""

from dataclasses import replace

from live_cases import START_S, Run

from llm_locust.live.store import MOST_LINES, MOST_SERVERS, Charts
from llm_locust.metrics.server_series import ServerNow
from llm_locust.swarm.web.numbers import Feed


def second(run: Run, *servers: ServerNow) -> None:
    run.store.observe_servers(servers)
    run.clock.tick()


def replica(name: str = "a:8000", running: float = 3.0) -> ServerNow:
    return ServerNow(name=name, up=True, running=running, kv_cache_usage=0.25)


def test_a_cell_has_the_mean_of_what_was_said_in_it_and_only_what_was_said() -> None:
    run = Run()
    for running in (2.0, 4.0, 7.0, 7.0):
        second(run, replica(running=running))
    run.clock.tick(2)
    columns = Charts(run.store).series("5m").columns
    assert columns["server:running:a:8000"] == [3.0, 7.0]
    assert columns["server:kv_cache_usage:a:8000"] == [0.25, 0.25]
    assert not any("waiting" in name for name in columns)


def test_a_server_that_gives_no_page_leaves_a_gap() -> None:
    run = Run()
    gone = ServerNow(name="a:8000", up=False)
    for server in (replica(), replica(), gone, gone):
        second(run, server, replica("b:8000"))
    run.clock.tick(2)
    columns = Charts(run.store).series("5m").columns
    assert columns["server:running:a:8000"] == [3.0, None]
    assert columns["server:running:b:8000"] == [3.0, 3.0]


def test_a_server_that_falls_silent_and_one_that_is_back_are_marked_once() -> None:
    run = Run()
    gone = ServerNow(name="a:8000", up=False)
    for server in (gone, replica(), replica(), gone, gone, replica()):
        second(run, server)
    assert [(mark.kind, mark.text) for mark in run.store.marks] == [
        ("answers", "server a:8000 is back"),
        ("silent", "server a:8000 gives no metrics"),
        ("answers", "server a:8000 is back"),
    ]


def test_of_many_servers_the_extremes_and_the_middle_are_told_from_then_on() -> None:
    run = Run()
    charts = Charts(run.store)
    for _ in range(2):
        second(run, *(replica(f"s{i}", float(i)) for i in range(MOST_LINES)))
    run.clock.tick(40)
    assert f"server:running:s{MOST_LINES - 1}" in charts.series("run").columns
    for _ in range(2):
        second(run, *(replica(f"s{i}", float(i)) for i in range(MOST_LINES + 1)))
    run.clock.tick(40)
    columns = charts.series("run").columns
    told = [name for name in columns if name.startswith("server:running:")]
    assert told == [f"server:running:{place}" for place in ("highest", "median", "lowest")]
    assert columns["server:running:highest"] == [MOST_LINES - 1.0, float(MOST_LINES)]


def test_a_server_with_a_role_has_it_before_its_name_also_if_it_becomes_known_late() -> None:
    run = Run()
    second(run, ServerNow(name="d:8000", up=False), replace(replica("p:8000"), role="prefill"))
    roles = (("p:8000", "prefill"), ("d:8000", "decode"))
    for _ in range(3):
        second(run, *(replace(replica(name), role=role) for name, role in roles))
    run.clock.tick(2)
    columns = Charts(run.store).series("5m").columns
    assert {"server:running:decode d:8000", "server:running:prefill p:8000"} <= columns.keys()
    assert run.store.content.servers == {"prefill p:8000": True, "decode d:8000": True}


def test_extremes_are_those_of_servers_of_one_role() -> None:
    run = Run()
    servers = [replace(replica(f"p{i}", float(i)), role="prefill") for i in range(MOST_LINES)]
    for _ in range(2):
        second(run, *servers, replace(replica("d", 99.0), role="decode"))
    run.clock.tick(40)
    columns = Charts(run.store).series("run").columns
    assert columns["server:running:prefill highest"] == [MOST_LINES - 1.0]
    assert columns["server:running:decode lowest"] == [99.0]


def test_servers_are_bounded_however_many_names_come() -> None:
    run = Run()
    for i in range(3 * MOST_SERVERS):
        second(run, replica(f"pod-{i}"))
    names = {name for _, cell in run.store.content.run.cells(0, float("inf")) for name in cell.servers}
    assert names == {f"pod-{i}" for i in range(MOST_SERVERS)}


def test_what_comes_after_the_stop_is_left_out_and_a_reset_forgets() -> None:
    run = Run()
    second(run, replica())
    run.store.reset()
    assert not list(run.store.content.run.cells(START_S - 10, float("inf")))
    run.store.stop()
    second(run, replica())
    assert not list(run.store.content.run.cells(START_S - 10, float("inf")))


def test_a_page_that_polls_is_told_a_new_server_with_everything() -> None:
    run = Run()
    feed = Feed(run.store, keep_s=0)
    for _ in range(4):
        second(run, replica())
    run.clock.tick(2)
    first = feed.answer("5m")
    for _ in range(4):
        second(run, replica(), replica("b:8000"))
    run.clock.tick(2)
    answer = feed.answer("5m", first["token"])
    assert answer["full"]
    assert {"server:running:a:8000", "server:running:b:8000"} <= set(answer["columns"])
