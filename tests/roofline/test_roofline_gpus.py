"""GPUs by name and by their values."""

import pytest

from llm_locust.roofline.gpus import GPUS, Gpu, RooflineError, gpu_named


@pytest.mark.parametrize("name", ["h100", "H100", "h100-sxm", "H100 SXM", " h100_sxm "])
def test_a_name_is_found_whatever_its_case_and_its_blanks(name: str) -> None:
    assert gpu_named(name) is GPUS["h100"]


def test_an_h100_is_that_of_its_data_sheet() -> None:
    gpu = gpu_named("h100")
    assert gpu.memory_bytes == 80 * 2**30
    assert gpu.bandwidth_bytes_per_s == 3.35e12
    assert gpu.bf16_flops == 1979e12 / 2  # the data sheet's has sparsity
    assert gpu.peak_flops("fp8") == gpu.peak_flops("int8") == 1979e12


def test_without_units_of_eight_bits_a_gpu_computes_in_sixteen() -> None:
    assert gpu_named("a100").peak_flops("fp8") == gpu_named("a100").peak_flops("bf16") == 312e12
    assert gpu_named("a100").peak_flops("int8") == 624e12


def test_eight_bits_are_never_slower_than_sixteen_and_dense_peaks_are_no_sparse_ones() -> None:
    for gpu in GPUS.values():
        assert gpu.peak_flops("fp8") >= gpu.bf16_flops
        # Bytes that one operation would need to be bound by memory: a sparse peak would double it.
        assert 100 < gpu.bf16_flops / gpu.bandwidth_bytes_per_s < 450, gpu.name


def test_an_unknown_name_is_told_with_the_nearest_one_and_all_others() -> None:
    with pytest.raises(RooflineError) as e:
        gpu_named("h10")
    assert str(e.value).startswith('there is no GPU "h10": did you mean "h100"? known are a100-40gb, ')
    with pytest.raises(RooflineError, match="mi325x"):
        gpu_named("")


def test_a_gpu_is_given_by_its_values_in_the_units_of_data_sheets() -> None:
    gpu = gpu_named("memory=80, bandwidth=3.35, bf16=989.5, fp8=1979")
    known = gpu_named("h100")
    assert (gpu.memory_bytes, gpu.bandwidth_bytes_per_s) == (known.memory_bytes, known.bandwidth_bytes_per_s)
    assert (gpu.bf16_flops, gpu.fp8_flops, gpu.int8_flops) == (known.bf16_flops, known.fp8_flops, None)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("memory=80,bandwidth=3", "bf16 is missing: write memory=80,"),
        ("memory=80,speed=3", '"speed" is not one of memory, bandwidth, bf16, fp8, int8'),
        ("memory=80,memory=3", '"memory" is given twice'),
        ("memory=lots,bandwidth=3,bf16=1", 'memory is "lots": write a number'),
        ("memory=0,bandwidth=3,bf16=1", "memory_bytes of GPU by its values is 0: write a number above 0"),
        ("memory=1,bandwidth=nan,bf16=1", "is nan: write a number above 0"),
        ("memory=1,bandwidth=1,bf16=1,fp8=0", "fp8_flops of GPU by its values is 0"),
    ],
)
def test_values_that_are_none_are_told_in_one_line(text: str, said: str) -> None:
    with pytest.raises(RooflineError) as e:
        gpu_named(text)
    assert said in str(e.value)
    assert "\n" not in str(e.value)


def test_a_gpu_without_bandwidth_is_refused() -> None:
    with pytest.raises(RooflineError, match="bandwidth_bytes_per_s of none is -1"):
        Gpu(name="none", memory_bytes=1, bandwidth_bytes_per_s=-1, bf16_flops=1)
