"""The client's error against a server of known times, in words."""

from llm_locust.core.manifest import CalibrationFacts
from llm_locust.metrics.summary_types.run import ClientCalibration
from llm_locust.report.text import clean, count, plural, short

#: Fewest values of which a p99 is said; of fewer the largest is.
FEWEST = 100


def calibration_text(found: CalibrationFacts | ClientCalibration) -> str:
    """One line: how far the times may be off, at which load; or why that is not known."""
    if not found.answers and found.why:
        return f"not calibrated: {short(clean(found.why), 160)}"
    if found.astray or not found.answers:
        astray = f"{count(found.astray)} of {plural(found.answers, 'answer')} not as the server wrote them"
        return f"{astray}; the first: {short(clean(found.why), 160)}" if found.why else astray
    which = "p99" if found.ttft_n >= FEWEST else f"largest of {found.ttft_n}"
    fewer = f" of {count(found.asked)} asked for" if found.streams < found.asked else ""
    load = f"{plural(found.streams, 'stream')}{fewer}, {count(found.tokens_per_s)} tokens/s"
    of = "" if found.workers == 1 else f" (one of {count(found.workers)} workers, on the master's machine)"
    return f"{_within('TTFT', found.ttft_ms)} ({which}) at {load}; {_within('ITL', found.itl_ms)}{of}"


def _within(name: str, error_ms: float | None) -> str:
    return f"{name} not known" if error_ms is None else f"{name} within {max(error_ms, 0.001):.2g} ms"
