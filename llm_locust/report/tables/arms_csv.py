"""``arms.csv``: the differences between arms, with each end of their intervals."""

import csv
import io

from llm_locust.metrics.summary_types.summary import Summary

_HEADS = (
    *("base_arm", "new_arm", "metric", "unit", "base", "new", "difference", "difference_low"),
    *("difference_high", "change", "change_low", "change_high", "confidence", "verdict"),
)


def arms_csv(summary: Summary) -> str | None:
    """A line for each figure of each arm but the first; None in a run without arms. Undefined is empty."""
    if not summary.arms:
        return None
    sink = io.StringIO()
    writer = csv.writer(sink, lineterminator="\n")
    writer.writerow(_HEADS)
    for arm in summary.arms:
        for row in arm.against.rows if arm.against else ():
            assert arm.against is not None
            writer.writerow(
                (
                    *(arm.against.arm, arm.name, row.metric, row.unit, row.base, row.new, row.difference),
                    *(row.difference_interval or (None, None)),
                    row.change,
                    *(row.change_interval or (None, None)),
                    *(arm.against.confidence, row.verdict),
                )
            )
    return sink.getvalue()
