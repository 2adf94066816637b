"""What more GPUs gave."""

import pytest

from llm_locust.figures.compare.comparison import ScalingError, scaling


def test_perfect_scaling_has_an_efficiency_of_one_and_nothing_serial() -> None:
    found = scaling([(8, 800.0), (1, 100.0), (4, 400.0), (2, 200.0)])
    assert [s.gpus for s in found] == [1, 2, 4, 8]
    assert [s.speedup for s in found] == [1, 2, 4, 8]
    assert [s.efficiency for s in found] == [1, 1, 1, 1]
    assert [s.per_gpu for s in found] == [100] * 4
    assert found[0].serial is None
    assert [s.serial for s in found[1:]] == pytest.approx([0, 0, 0])


def test_a_part_that_is_done_once_shows_as_the_same_share_at_every_size() -> None:
    amdahl = [(g, 100 / (0.1 + 0.9 / g)) for g in (1, 2, 4, 8)]
    found = scaling(amdahl)
    assert [s.serial for s in found[1:]] == pytest.approx([0.1] * 3)
    assert found[-1].efficiency == pytest.approx(1 / (0.8 + 0.9))


def test_the_base_is_the_smallest_whatever_its_size() -> None:
    _, eight = scaling([(4, 400.0), (8, 600.0)])
    assert (eight.speedup, eight.efficiency, eight.per_gpu) == (1.5, 0.75, 75)


def test_of_several_runs_of_a_size_the_median_counts() -> None:
    assert [s.rate for s in scaling([(1, 100.0), (1, 90.0), (1, 500.0), (2, 150.0), (2, 250.0)])] == [
        100,
        200,
    ]


@pytest.mark.parametrize(
    ("runs", "why"),
    [([], "at least two"), ([(1, 5.0), (1, 6.0)], "at least two"), ([(1, 5.0), (2, 0.0)], "above 0"),
     ([(0, 5.0), (2, 1.0)], "above 0"), ([(1, float("nan")), (2, 1.0)], "above 0")],
)  # fmt: skip
def test_runs_that_cannot_be_compared_are_refused(runs: list[tuple[float, float]], why: str) -> None:
    with pytest.raises(ScalingError, match=why):
        scaling(runs)
