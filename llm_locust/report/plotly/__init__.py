"""The script that draws the charts of all pages: plotly.js's cartesian bundle, as npm has it.

It has every kind of trace that a chart here uses (scatter, bar, heatmap), in a third of the whole size.
``make plotly`` fetches it. Its licence, MIT, lies beside it.
"""

import gzip
from functools import cache
from importlib import resources

_FILE = "plotly-cartesian.min.js.gz"


@cache
def packed_plotly() -> bytes:
    """The script, packed by gzip."""
    return (resources.files(__name__) / _FILE).read_bytes()


def plotly() -> bytes:
    """The script itself: 1.5 MB of UTF-8."""
    return gzip.decompress(packed_plotly())
