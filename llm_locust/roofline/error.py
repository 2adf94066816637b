"""Error of this package."""


class RooflineError(ValueError):
    """A GPU, a model or a question without a roofline; one line that says what to write."""
