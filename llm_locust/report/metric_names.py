"""Labels of the figures that runs and arms are compared by."""

from llm_locust.metrics.catalogue import LATENCY
from llm_locust.metrics.compare.comparable import Metric
from llm_locust.metrics.gates import MetricKind

_OTHERS = {
    "goodput": "Goodput ratio",
    "on_time": "Tokens on time",
    "error_rate": "Error rate",
    "rps": "Requests/s",
    "output_tps": "Output tokens/s",
    "output_cps": "Output chars/s",
    "input_tps": "Input tokens/s",
    "total_tps": "Tokens/s",
    "goodput_rps": "Good requests/s",
    "inputs_per_s": "Inputs/s",
    "images_per_s": "Images/s",
}


def figure_label(metric: Metric, marked: bool = False) -> str:
    """``TTFT p99``; ``marked`` puts † behind figures of tokens."""
    if metric.kind is MetricKind.LATENCY:
        text = f"{LATENCY[metric.latency].short} {metric.statistic.replace('_', '.')}"
    else:
        text = f"Held {metric.limit}" if metric.limit else _OTHERS[metric.name]
    return text + (" †" if marked and metric.of_tokens else "")
