"""Numbers in sentences and tables, for people: no exponents, no more digits than mean something."""

import math

#: A figure that is not defined, and never 0.
UNDEFINED = "–"

#: A smaller probability is told as that: nobody believes in its digits.
_LEAST_P = 0.001


def figure(value: float | None, apart_from: float | None = None) -> str:
    """Three significant digits, or all digits of the integer part: ``0.0123``, ``12.3``, ``1,235``; a dash if
    it is not defined.

    Args:
        apart_from: another value, such as a limit that is held against this one: where both would be the
            same text although they differ, this one gets as many digits more as tell them apart.
    """
    if value is None or math.isnan(value):
        return UNDEFINED
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    text = _rounded(value, 0)
    if apart_from is None or value == apart_from or not math.isfinite(apart_from):
        return text
    more = 0
    while text == _rounded(apart_from, more) and more < 12:
        more += 1
        text = _rounded(value, more)
    return text


def _rounded(value: float, more: int) -> str:
    if value == 0:
        return "0"
    # Rounded first: 9.996 has two digits before the point, once it is 10.0.
    magnitude = math.floor(math.log10(abs(float(f"{value:.3g}"))))
    digits = 1 if magnitude < -3 else 2  # below 0.001 two say enough
    return f"{value:,.{max(0, digits - magnitude) + more}f}"


def quantity(value: float | None, apart_from: float | None = None) -> str:
    """A figure in a sentence, without zeros at its end: ``20``, ``1.5``, ``1,235``."""
    text = figure(value, apart_from)
    return text.rstrip("0").rstrip(".") if "." in text else text


def probability(p: float) -> str:
    """A p-value: ``p 0.012``, ``p < 0.001``."""
    return f"p < {_LEAST_P:g}" if p < _LEAST_P else f"p {p:.2g}"
