"""Every shell and Python block of README.md and docs/ runs, against a simulated deployment."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from doc_blocks import PAGES, PYTHON, READ, REASONS, ROOT, SHELL, Block, Session, blocks
from swarm_process import Simulation, free_port, simulation

BLOCKS = {page: list(blocks(page)) for page in PAGES}
RUN = {page: found for page in PAGES if (found := [b for b in BLOCKS[page] if b.language in (SHELL, PYTHON)])}


def every() -> list[Block]:
    return [block for found in BLOCKS.values() for block in found]


def test_every_block_is_run_or_of_a_language_that_is_only_read() -> None:
    other = {block.place: block.language for block in every()}
    assert {p: name for p, name in other.items() if name not in READ | {SHELL, PYTHON}} == {}


def test_every_block_that_is_not_run_has_a_listed_reason_and_every_reason_a_block() -> None:
    given = {block.place: block.reason for block in every() if block.reason is not None}
    assert {place: reason for place, reason in given.items() if reason not in REASONS} == {}
    assert set(given.values()) >= REASONS


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Simulation]:
    options = ("--replicas", "2", "--replica-ports", "0", "--prefix-cache", "on")
    with simulation(tmp_path_factory.mktemp("sim"), *options) as simulated:
        yield simulated


def _run(page: Path, deployment: Simulation, first: Session | None, folder: Path) -> Session:
    said = (deployment.truth.parent / "sim.out").read_text().splitlines()
    replicas = [line.split()[-1].removesuffix("/v1") for line in said if line.startswith("replica-")]
    assert len(replicas) == 2, said
    port = str(free_port())
    ports = {"LOCUST_MASTER_BIND_PORT": port, "LOCUST_MASTER_NODE_PORT": port}
    ports["LOCUST_WEB_PORT"] = str(free_port())
    session = Session(folder, first, deployment.url, ",".join(replicas), ports)
    for block in RUN[page]:
        if block.reason is None:
            session.run(block)
    return session


@pytest.fixture(scope="module")
def pages(
    deployment: Simulation, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[Path, Future[Session]]]:
    """README.md, and then all others, three at a time: their blocks mostly wait for short runs."""
    first, *others = RUN
    with ThreadPoolExecutor(3) as pool:
        begun = {first: pool.submit(_run, first, deployment, None, tmp_path_factory.mktemp(first.stem))}
        for page in others:
            folder = tmp_path_factory.mktemp(page.stem)
            begun[page] = pool.submit(
                lambda page, folder: _run(page, deployment, begun[first].result(), folder), page, folder
            )
        yield begun


@pytest.mark.parametrize("page", RUN, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_blocks_of_a_page_run_in_order(page: Path, pages: dict[Path, Future[Session]]) -> None:
    pages[page].result()
