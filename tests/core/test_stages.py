"""Each request gets the stage in which it was sent, or was due."""

from dataclasses import replace

import pytest
from metrics_cases import batch, failed, manifest, ns, request, stage

from llm_locust.core.arrow import SCHEMA
from llm_locust.core.batch import RecordBatch
from llm_locust.core.manifest import PrefixShare
from llm_locust.core.record import LengthPair
from llm_locust.core.stages import finished, of_lengths, records_missing, resumed, staged, with_stages

STAGES = [stage(0, 1.5, 10.0), stage(1, 11.5, 20.0), stage(2, 21.5, 30.0)]  # their loads begin at 1, 11, 21 s


def stages_of(*at: float, late: float = 0.0, open_loop: bool = False) -> list[int | None]:
    made = batch(*(request(at=each, late=late) for each in at))
    table = with_stages(made, STAGES, open_loop).table
    assert table.schema.equals(SCHEMA, check_metadata=True)
    found: list[int | None] = table.column("stage").to_pylist()
    return found


def test_a_request_is_of_the_last_stage_that_had_begun() -> None:
    assert stages_of(0.5, 1.0, 10.5, 11.0, 25.0, 99.0) == [None, 0, 0, 1, 2, 2]


def test_a_clock_that_was_corrected_later_moves_no_request_to_the_stage_before() -> None:
    """The first stage drained at 10.25 s. A request of the second one may not have been sent before 11 s."""
    assert stages_of(0.8, 10.8, 20.8) == [0, 1, 2]
    assert stages_of(0.8, 10.8, 20.8, open_loop=True) == [0, 1, 2]
    assert stages_of(10.7) == [0], "half of the pause, at most 250 ms"


def test_steps_without_a_pause_are_split_where_they_meet() -> None:
    steps = [stage(0, 0.5, 10.0, drained_ns=None), stage(1, 10.5, 20.0, drained_ns=None)]
    made = batch(*(request(at=each) for each in (9.999, 10.0)))
    assert with_stages(made, steps, open_loop=True).table.column("stage").to_pylist() == [0, 1]


def test_a_request_that_waited_is_of_the_stage_it_was_sent_in_but_of_the_one_it_was_due_in_if_scheduled() -> (
    None
):
    assert stages_of(10.5, late=1.0) == [1]
    assert stages_of(10.5, late=1.0, open_loop=True) == [0]


def test_a_request_that_was_never_sent_counts_from_its_start() -> None:
    unsent = replace(failed(at=12.0), sent_ns=None, started_ns=ns(12.0))
    assert with_stages(batch(unsent), STAGES, open_loop=False).table.column("stage").to_pylist() == [1]


def test_a_stage_that_was_never_ended_reaches_to_the_next() -> None:
    died = stage(0, 1.5, 9.0, measured_ns=None, ended_ns=None, drained_ns=None)
    made = batch(*(request(at=each) for each in (10.7, 10.8)))
    assert with_stages(made, [died, STAGES[1]], False).table.column("stage").to_pylist() == [0, 1]


def test_the_order_in_which_a_manifest_lists_stages_changes_nothing() -> None:
    made = batch(request(at=5.0), request(at=15.0))
    assert with_stages(made, STAGES[::-1], False).table.equals(with_stages(made, STAGES, False).table)


def test_a_run_without_stages_keeps_its_batches() -> None:
    made = batch(request())
    assert list(staged([made], manifest())) == [made]
    assert list(staged([made], None)) == [made]
    (found,) = staged([made, RecordBatch.empty()][:1], manifest(stages=STAGES))
    assert found.table.column("stage").to_pylist() == [None]


def test_the_stage_that_a_resumed_run_repeats_is_no_result_and_all_others_are() -> None:
    under_way = replace(stage(1, 11.5, 20.0), drained_ns=None)
    again, last = stage(2, 21.5, 30.0), replace(stage(3, 31.5, 40.0), drained_ns=None)
    whole = resumed([[STAGES[0], under_way], [], [again], [last]])
    assert [each.repeated_as for each in whole] == [None, 2, None, None]
    assert (whole[1].measured_ns, whole[1].ended_ns) == (None, None)
    assert whole[1].fault == "the run ended while it was under way; stage 2 repeats it"
    assert finished(whole) == [STAGES[0], again, last]  # the last one of all may still be under way


def test_records_too_many_of_one_worker_make_up_for_none_of_another() -> None:
    one = batch(request(1.0), request(2.0), request(9.0), worker="w1")
    other = batch(request(1.0), worker="w2")
    both = RecordBatch.concat([one, other])
    assert records_missing(both, {"w1": 1, "w2": 3, "w3": 4}, ns(9.0)) == 2 + 4
    assert records_missing(both, {"w1": 3}, ns(9.0)) == 1  # due at that time is due after it
    assert records_missing(both, {"w1": 3}, ns(9.0) + 1) == 0


def test_a_curve_is_of_the_stages_of_one_pair_of_lengths() -> None:
    short, long = LengthPair(128, 32), LengthPair(1024, 32)
    at = [replace(each, lengths=pair) for each, pair in zip(STAGES, (short, long, short), strict=True)]
    assert of_lengths(at, "128:32") == [at[0], at[2]]
    assert of_lengths(at[::2], None) == at[::2]
    assert of_lengths(STAGES, None) == STAGES
    with pytest.raises(ValueError, match=r"have the lengths 128:32, 1024:32, and .* add --lengths 128:32"):
        of_lengths(at, None)
    with pytest.raises(ValueError, match="--lengths 1:1: the stages have the lengths 128:32, 1024:32"):
        of_lengths(at, "1:1")
    with pytest.raises(ValueError, match="--lengths 1:1: its sweep is not over lengths"):
        of_lengths(STAGES, "1:1")
    shared = replace(STAGES[0], prefix=PrefixShare.of(0.5, 256, 4))
    with pytest.raises(ValueError, match="over shares of a shared prefix"):
        of_lengths([shared], None)
    assert str(shared.prefix) == "50%"


@pytest.mark.parametrize(("asked", "tokens"), [(0.0, 0), (0.3, 80), (0.5, 128), (0.99, 224)])
def test_a_share_is_the_nearest_number_of_whole_blocks_that_leaves_some_of_the_prompts_own(
    asked: float, tokens: int
) -> None:
    assert PrefixShare.of(asked, 256, 4).tokens == tokens


def test_a_share_of_less_than_a_block_is_refused() -> None:
    with pytest.raises(ValueError, match=r"0\.01 of 256 tokens is not one block of 16"):
        PrefixShare.of(0.01, 256, 4)
