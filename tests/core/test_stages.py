"""Each request gets the stage in which it was sent, or was due."""

from dataclasses import replace

from metrics_cases import batch, failed, manifest, ns, request, stage

from llm_locust.core.batch import SCHEMA, RecordBatch
from llm_locust.core.stages import staged, with_stages

STAGES = [stage(0, 1.5, 10.0), stage(1, 11.5, 20.0), stage(2, 21.5, 30.0)]  # their loads begin at 1, 11, 21 s


def stages_of(*at: float, late: float = 0.0, open_loop: bool = False) -> list[int | None]:
    made = batch(*(request(at=each, late=late) for each in at))
    table = with_stages(made, STAGES, open_loop).table
    assert table.schema.equals(SCHEMA, check_metadata=True)
    found: list[int | None] = table.column("stage").to_pylist()
    return found


def test_a_request_is_of_the_last_stage_that_had_begun() -> None:
    assert stages_of(0.5, 1.0, 10.9, 11.0, 25.0, 99.0) == [None, 0, 0, 1, 2, 2]


def test_a_request_that_waited_is_of_the_stage_it_was_sent_in_but_of_the_one_it_was_due_in_if_scheduled() -> (
    None
):
    assert stages_of(10.5, late=1.0) == [1]
    assert stages_of(10.5, late=1.0, open_loop=True) == [0]


def test_a_request_that_was_never_sent_counts_from_its_start() -> None:
    unsent = replace(failed(at=12.0), sent_ns=None, started_ns=ns(12.0))
    assert with_stages(batch(unsent), STAGES, open_loop=False).table.column("stage").to_pylist() == [1]


def test_the_order_in_which_a_manifest_lists_stages_changes_nothing() -> None:
    made = batch(request(at=5.0), request(at=15.0))
    assert with_stages(made, STAGES[::-1], False).table.equals(with_stages(made, STAGES, False).table)


def test_a_run_without_stages_keeps_its_batches() -> None:
    made = batch(request())
    assert list(staged([made], manifest())) == [made]
    assert list(staged([made], None)) == [made]
    (found,) = staged([made, RecordBatch.empty()][:1], manifest(stages=STAGES))
    assert found.table.column("stage").to_pylist() == [None]
