"""Request headers that tell a gateway the limits of a class: ``x-slo-ttft-ms: 500``.

The endpoint pickers of llm-d and of the Gateway API Inference Extension read two, of TTFT and of TPOT, in
milliseconds. Their names begin with ``x-slo`` up to llm-d 0.7, and with ``x-llm-d-slo`` from 0.8 on, which
reads the older ones too (https://llm-d.ai/docs/api-reference/epp-http-headers).
"""

from collections.abc import Iterable, Mapping, Sequence, Set

from llm_locust.scenario.request_kind import RequestKind
from llm_locust.wire.headers import header_template

#: The latencies whose limits have a header.
METRICS = ("ttft", "tpot")


def parse_prefix(text: str) -> str:
    """What the headers' names begin with, in lower case (raises ValueError)."""
    prefix = text.strip().lower().rstrip("-")
    if not prefix or "{" in prefix:
        raise ValueError(f"{text[:40]!r} is no start of a header name: write such as x-slo")
    header_template(_name(prefix, "ttft"), "")
    return prefix


def slo_headers(prefix: str | None, limits_s: Mapping[str, float]) -> dict[str, str]:
    """The headers of requests with these limits, metric -> seconds; none without a prefix."""
    if prefix is None:
        return {}
    return {
        _name(prefix, metric): f"{limits_s[metric] * 1e3:.12g}" for metric in METRICS if metric in limits_s
    }


def check_slo_headers(
    prefix: str,
    kinds: Sequence[RequestKind],
    limits_s: Mapping[str, Mapping[str, float]],
    given: Iterable[str],
) -> None:
    """Check that the headers can say what the requests are judged by.

    Args:
        limits_s: class -> metric -> limit, ``""`` for those of the run.
        given: names of the headers that the run and its arms set themselves.

    Raises:
        ValueError: no kind has such a limit, a header is set in two places, or lines of a dataset have a
            class with other limits than their kind.
    """

    def headers_of(name: str) -> dict[str, str]:
        return slo_headers(prefix, limits_s.get(name, limits_s[""]))

    if not any(headers_of(kind.slo_class) for kind in kinds):
        raise ValueError(
            f"--slo-headers {prefix}: no request has a limit for {' or '.join(METRICS)}; give one by --slo, "
            "or by the slo of a class"
        )
    names = {_name(prefix, metric) for metric in METRICS}
    check_once(f"--slo-headers {prefix}", names, kinds, given)
    for kind in kinds:
        dataset = kind.spec.dataset
        for line in () if dataset is None else dataset.prompts:
            if line.slo_class and headers_of(line.slo_class) != headers_of(kind.slo_class):
                raise ValueError(
                    f"--slo-headers {prefix}: a line of the dataset is of class {line.slo_class[:40]!r}, "
                    "whose limits differ from those that its request would name"
                )


def check_once(option: str, names: Set[str], kinds: Sequence[RequestKind], given: Iterable[str]) -> None:
    """Check that no header of ``names``, which an option sends, is given too (raises ValueError)."""
    for header in (*given, *(header for kind in kinds for header in kind.headers)):
        if header.lower() in names:
            raise ValueError(f"{option}: the header {header!r} is given too; leave out one of them")


def _name(prefix: str, metric: str) -> str:
    return f"{prefix}-{metric}-ms"
