"""The script that draws the charts of all pages."""

from importlib.util import find_spec
from pathlib import Path


def plotlyjs() -> bytes:
    """Read it from plotly's package, of which nothing else is used: its import takes a tenth of a second."""
    found = find_spec("plotly")
    assert found is not None
    assert found.origin is not None
    return (Path(found.origin).parent / "package_data" / "plotly.min.js").read_bytes()
