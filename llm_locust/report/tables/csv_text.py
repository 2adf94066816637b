"""CSV text of rows."""

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows under a head line with the columns of all. What a row lacks, and None, is an empty cell."""
    heads = dict.fromkeys(head for row in rows for head in row)
    sink = io.StringIO()
    writer = csv.DictWriter(sink, list(heads), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return sink.getvalue()
