"""How requests were shared out, as the records show it, and the replicas side by side."""

import random
from typing import Any

import numpy as np
import pytest
from metrics_cases import NAMES, ORIGIN_NS, at_random, batch, columns, in_turn, ns, request, served

from llm_locust.core.batch import RecordBatch
from llm_locust.core.record import RequestRecord
from llm_locust.figures.routing import (
    Affinity,
    Carriers,
    by_connection,
    by_key,
    dispersion,
    middle,
    replica_labels,
    replicas,
    while_all_serve,
    with_course,
)
from llm_locust.metrics.columns import Part
from llm_locust.metrics.limits import Slo
from llm_locust.metrics.requests.judgement import Limits
from llm_locust.metrics.requests.rates import Credits
from llm_locust.metrics.steady_window import find_stuck
from llm_locust.metrics.window import Window


def connection(records: list[RequestRecord], rows: RecordBatch | None = None) -> Affinity:
    whole = batch(*records) if rows is None else rows
    c = Part.from_batch(whole, ORIGIN_NS)
    return by_connection(c, Carriers.of(whole), c.replica, np.arange(len(c)))


def test_a_connection_that_decides_is_told_from_routing_at_random() -> None:
    sticky = served(lambda i: "a" if i < 500 else "b")
    affinity = connection(sticky)
    assert affinity.pairs == 799
    assert affinity.observed == pytest.approx(798 / 799)
    assert affinity.expected == pytest.approx((5 / 8) ** 2 + (3 / 8) ** 2)
    assert affinity.decides
    assert not connection(served(at_random())).decides
    assert not connection(served(in_turn())).decides


def test_the_connection_of_a_request_is_told_by_worker_address_and_port() -> None:
    # Each connection has its replica, and ends of requests say nothing of who took which.
    def carried(i: int, place: int, **fields: Any) -> RequestRecord:
        return request(i * 0.1, (0.05, 0.35), replica=NAMES[place], reused=i > 7, **fields)

    ports = [carried(i, i % 2, peer="10.0.0.1:80", local_port=40_000 + i % 2) for i in range(200)]
    peers = [carried(i, 2 + i % 2, peer=f"10.0.0.{i % 2}:80", local_port=40_000) for i in range(200)]
    rows = RecordBatch.concat([batch(*ports), batch(*peers, worker="w2")])
    affinity = connection([], rows)
    assert (affinity.pairs, affinity.observed) == (2 * 192, 1.0)


def test_a_port_that_is_used_again_is_another_connection() -> None:
    again = [
        request(i * 0.1, replica="ab"[i // 4 % 2], reused=i % 4 > 0, local_port=40_000) for i in range(80)
    ]
    assert connection(again).pairs == 60
    assert connection(again).observed == 1.0


def test_of_records_without_ports_nothing_is_told_of_connections() -> None:
    older = [request(i * 0.1, replica="a", reused=True, peer="10.0.0.1:80") for i in range(100)]
    assert connection(older).pairs == 0


def test_new_connections_tell_nothing() -> None:
    fresh = [request(i * 0.1, replica="ab"[i % 2], reused=False) for i in range(100)]
    affinity = connection(fresh)
    assert affinity == Affinity(0, 0.0, 0.5)
    assert not affinity.decides


def by_session(pick: Any, sessions: int = 40, turns: int = 10) -> Affinity:
    order = [(s, t) for t in range(turns) for s in range(sessions)]
    records = [request(i * 0.1, replica=pick(s), session=f"s{s}", turn=t) for i, (s, t) in enumerate(order)]
    rows = batch(*records)
    c = Part.from_batch(rows, ORIGIN_NS)
    return by_key(c, Carriers.of(rows).session, c.replica, np.arange(len(c)))


def test_turns_that_go_where_the_one_before_went_show_session_routing() -> None:
    assert by_session(lambda s: NAMES[s % 4]).observed == 1.0
    assert by_session(lambda s: NAMES[s % 4]).decides
    source = random.Random(1)
    assert not by_session(lambda s: source.choice(NAMES)).decides


def test_requests_without_a_session_are_in_no_session() -> None:
    rows = batch(*served(in_turn()))
    c = Part.from_batch(rows, ORIGIN_NS)
    assert by_key(c, Carriers.of(rows).session, c.replica, np.arange(len(c))).pairs == 0


def test_dispersion_is_near_nothing_in_turn_and_near_one_at_random() -> None:
    turns, chance = (columns(*served(pick, n=2400)) for pick in (in_turn(), at_random()))
    rows = np.arange(2400)
    assert dispersion(turns, turns.replica, rows) == 0.0
    assert dispersion(chance, chance.replica, rows) == pytest.approx(1.0, abs=0.25)


def test_dispersion_forgives_neighbours_that_changed_places() -> None:
    source, records = random.Random(5), served(in_turn(), n=2400, every_s=0.01)
    shaken = columns(
        *(request(i * 0.01 + source.random() * 0.04, replica=r.replica) for i, r in enumerate(records))
    )
    found = dispersion(shaken, shaken.replica, np.arange(2400))
    assert found is not None
    assert found < 0.3


def test_dispersion_is_not_told_of_one_replica_nor_of_few_requests() -> None:
    one, few = columns(*served(lambda _: "a")), columns(*served(in_turn(), n=900))
    assert dispersion(one, one.replica, np.arange(800)) is None
    assert dispersion(few, few.replica, np.arange(900)) is None


def test_the_address_names_a_replica_only_where_no_header_does_and_there_are_several() -> None:
    def named(*records: RequestRecord) -> tuple[list[str], str | None]:
        rows = batch(*records)
        labels, by = replica_labels(Part.from_batch(rows, ORIGIN_NS), Carriers.of(rows))
        return [labels.names[code] if code >= 0 else "" for code in labels.codes], by

    one, two = request(peer="10.0.0.1:80"), request(peer="10.0.0.2:80")
    assert named(one, two) == (["10.0.0.1:80", "10.0.0.2:80"], "peer")
    assert named(one, one) == (["", ""], None)
    assert named(one, two, request(replica="a")) == (["", "", "a"], "header")


def test_parts_are_read_as_the_whole() -> None:
    records = [
        request(i * 0.1, replica="a", session=f"s{i % 3}" if i % 2 else None, peer="p") for i in range(30)
    ]
    rows = batch(*records)

    class InParts:
        def __len__(self) -> int:
            return 30

        def parts(self, columns: Any = ()) -> Any:
            return (RecordBatch(rows.table.slice(start, 7).select(columns)) for start in range(0, 30, 7))

    whole, cut = Carriers.of(rows), Carriers.of(InParts())
    assert (whole.session == cut.session).all()
    assert (cut.session != 0).sum() == 15
    assert cut.peer.names == ("p",)


def test_of_too_many_requests_those_of_the_middle_of_the_time_are_looked_at() -> None:
    c = columns(*(request(at / 10) for at in range(1000)))
    rows = np.arange(1000)
    assert middle(c, rows, 1000) is rows
    chosen = middle(c, rows, 100)
    assert len(chosen) == pytest.approx(100, abs=2)
    assert chosen[0] == pytest.approx(450, abs=2)
    assert np.all(np.diff(chosen) == 1)


def test_while_all_serve_is_outside_of_every_outage_that_has_an_edge() -> None:
    c: Part = columns(*(request(float(t)) for t in range(100)))
    rows, start_s = np.arange(100), float(c.sent_s[0])
    outages: list[tuple[float | None, float | None]] = [(None, 10.0), (20.0, 30.0), (90.0, None)]
    sent = [*range(10, 20), *range(30, 90)]
    assert while_all_serve(c, rows, outages, start_s).tolist() == sent
    assert while_all_serve(c, rows, [(None, None)], start_s).tolist() == rows.tolist()
    assert while_all_serve(c, rows[:5], outages[:1], start_s).tolist() == []


def test_without_an_slo_a_replica_has_no_goodput() -> None:
    c = columns(request(replica="a"))
    window = Window(ns(0.0), ns(1.0), "")
    (entry,) = replicas(c, Credits.of(c, window), None, find_stuck(c, window, Limits(Slo())))
    assert entry.goodput_ratio is None


def test_what_a_replica_did_over_time_is_told_in_equal_parts_of_the_window() -> None:
    c = columns(request(0.0, (2.0,), replica="a"), request(2.0, (1.0,), replica="b"))
    window, empty = Window(ns(0.0), ns(4.0), ""), Window(ns(0.0), ns(0.0), "")
    entries = replicas(c, Credits.of(c, window), None, find_stuck(c, window, Limits(Slo())))
    a, b = with_course(entries, c, window)
    assert a.in_flight == pytest.approx([1.0] * 30 + [0.0] * 30)
    assert b.in_flight == pytest.approx([0.0] * 30 + [1.0] * 15 + [0.0] * 15)
    assert a.outages == b.outages == []
    assert [each.in_flight for each in with_course(entries, c, empty)] == [[], []]
