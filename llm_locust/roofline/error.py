"""The one error of this room."""


class RooflineError(ValueError):
    """A GPU, a model or a question that has no roofline; one line that says what to write."""
