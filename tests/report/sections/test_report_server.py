"""Servers and energy, in words."""

from dataclasses import replace
from typing import Any

from metrics_cases import batch
from report_cases import manifest, records
from server_cases import rows, series

from llm_locust.figures.energy import show as energy
from llm_locust.figures.section import Section, Tone
from llm_locust.figures.servers import MOST_ROWS, show as servers
from llm_locust.figures.summarise import summarise
from llm_locust.figures.summary import Summary, typed
from llm_locust.report.sections.contents import sections

ALL = range(11)


def replica(target: str) -> list[Any]:
    return [
        *rows(target, "up", [1, 1, 0, *[1] * 8]),
        *rows(target, "running", [3 for _ in ALL]),
        *rows(target, "ttft_s_sum", [0.3 * i for i in ALL]),
        *rows(target, "ttft_s_count", [5 * i for i in ALL]),
    ]


def summary(*samples: Any) -> dict[str, Any]:
    made = records()
    return summarise(batch(*made), manifest(len(made)), server=series(samples))


def told(*samples: Any) -> Summary:
    return typed(summary(*samples))


def texts(section: Section | None) -> list[str]:
    assert section is not None
    return [line.text for line in (*section.lines, *section.notes)]


def test_servers_stand_in_a_table_without_what_none_of_them_tells() -> None:
    found = servers(told(*replica("a:8000"), *replica("b:8000")))
    assert found is not None
    assert found.table is not None
    assert [f"{c.over} {c.head}".strip() for c in found.table.columns] == [
        "Server", "running mean", "running max", "TTFT ms", "no page",
    ]  # fmt: skip
    assert [row.cells for row in found.table.rows] == [
        ("a:8000", "3.00", "3.00", "60.0", "1 of 10"),
        ("b:8000", "3.00", "3.00", "60.0", "1 of 10"),
        ("all", "6.00", "6.00", "60.0", "2 of 20"),
    ]


def test_transfers_of_kv_caches_are_told_by_the_server_that_counts_them() -> None:
    transfers = [
        *rows("decode:8000", "kv_transfer_s_sum", [0.04 * i for i in ALL]),
        *rows("decode:8000", "kv_transfer_s_count", [5 * i for i in ALL]),
        *rows("decode:8000", "kv_transfer_bytes_sum", [10 * 2**20 * i for i in ALL]),
        *rows("decode:8000", "kv_transfers_failed", ALL),
    ]
    found = servers(told(*replica("prefill:8000"), *replica("decode:8000"), *transfers))
    assert found is not None
    assert found.table is not None
    heads = [f"{c.over} {c.head}".strip() for c in found.table.columns]
    place = heads.index("KV transfer ms")
    assert heads[place : place + 3] == ["KV transfer ms", "KV transfer MiB", "KV transfer failed"]
    cells = {row.cells[0]: row.cells[place : place + 3] for row in found.table.rows}
    assert cells == {
        "prefill:8000": ("", "", ""),
        "decode:8000": ("8.00", "2.00", "10"),
        "all": ("8.00", "2.00", "10"),
    }


def test_the_gateways_part_of_a_first_token_is_a_line_with_what_it_is_made_of() -> None:
    said = texts(servers(told(*replica("a:8000"), *replica("b:8000"))))
    assert said[0].startswith("gateway and balancer: 37.0 ms of a mean TTFT (client 97.0 − servers 60.0")
    assert "2 of 20 scrapes of 2 servers returned no metrics page" in said


def test_a_server_that_never_answers_is_counted_on_its_own_and_covers_nothing() -> None:
    found = servers(told(*replica("a:8000"), *rows("dead", "up", [0, 0, 0])))
    assert found is not None
    assert found.table is not None
    assert found.table.rows[1].cells == ("dead", "", "", "", "3 of 3")
    assert "4 of 13 scrapes of 2 servers returned no metrics page" in texts(found)
    assert not any("scraped over only" in text for text in texts(found))


def test_counts_that_are_all_0_need_no_column() -> None:
    found = servers(told(*rows("a", "up", [1] * 11), *rows("a", "preemptions", [0] * 11)))
    assert found is not None
    assert found.table is not None
    assert [column.head for column in found.table.columns] == ["Server"]


def test_why_the_scraping_ended_early_is_said_with_and_without_samples() -> None:
    made = records()
    for samples in (replica("a:8000"), []):
        broken = replace(series(samples), failure="the scraper was ended by signal 9 (SIGKILL)")
        found = servers(typed(summarise(batch(*made), manifest(len(made)), server=broken)))
        assert "the scraper was ended by signal 9 (SIGKILL)" in texts(found)


def test_a_server_that_saw_other_requests_is_warned_of() -> None:
    found = servers(told(*replica("a:8000")))
    assert found is not None
    warned = [note.text for note in found.notes if note.tone is Tone.WARN]
    assert any("the servers saw 50 first tokens, the client 95" in text for text in warned)


def test_only_so_many_servers_are_told() -> None:
    found = servers(told(*(row for i in range(MOST_ROWS + 2) for row in rows(f"t{i}", "up", [1] * 11))))
    assert found is not None
    assert found.table is not None
    assert len(found.table.rows) == MOST_ROWS + 1
    assert "2 more in summary.json" in texts(found)


def test_energy_is_told_by_token_by_request_by_watt_and_by_gpu() -> None:
    said = texts(energy(told(*rows("dcgm", "energy_j", [100 * i for i in ALL], UUID="g"))))
    assert said[0] == "1 GPU: 100 W, 1,000 J in the window, by their energy counters"
    assert "J per output token" in said[1]
    assert "J per good request" in said[1]
    assert "output tokens/s per watt" in said[2]


def test_power_that_was_not_watched_long_enough_gives_a_reason_instead_of_figures() -> None:
    (line,) = texts(energy(told(*rows("dcgm", "power_w", [100, 100], UUID="g"))))
    assert line == "no figures: observed for less than 90 % of the window: g"


def test_without_servers_there_is_neither_section() -> None:
    made = summary()
    assert servers(typed(made)) is energy(typed(made)) is None
    assert not {"Servers", "Energy"} & {section.title for section in sections(typed(made))}
    both = {part.title for part in sections(told(*replica("a"), *rows("g", "power_w", [1.0] * 11)))}
    assert both >= {"Servers", "Energy"}
