"""What requests are counted by, kept from growing without bound."""

from typing import Final, NamedTuple

#: Stands for the names, classes or replicas beyond the limit.
OTHERS: Final = "others"

#: Pairs of name and class, and keys, that are told apart. Replicas of a deployment that restarts for days
#: have ever new names.
MOST_PAIRS = 32
MOST_KEYS = 128


class LiveKey(NamedTuple):
    """A request's name, SLO class and replica; ``""`` where it has none."""

    name: str
    slo_class: str
    replica: str


class KeyLimit:
    """Folds keys beyond the limits, the first that come being told apart.

    A new replica beyond the limit becomes :data:`OTHERS` of its name and class, so that sums by name stay
    true; so does a new pair of name and class. At most ``most_keys + most_pairs + 1`` keys come out.
    """

    def __init__(self, most_pairs: int = MOST_PAIRS, most_keys: int = MOST_KEYS) -> None:
        self._most_pairs, self._most_keys = most_pairs, most_keys
        self._pairs: set[tuple[str, str]] = set()
        self._keys: set[LiveKey] = set()

    def fold(self, key: LiveKey) -> LiveKey:
        """The key to count by."""
        if key in self._keys:
            return key
        if key[:2] not in self._pairs:
            if len(self._pairs) >= self._most_pairs:
                return LiveKey(OTHERS, OTHERS, OTHERS)
            self._pairs.add(key[:2])
        if len(self._keys) >= self._most_keys:
            return key._replace(replica=OTHERS)
        self._keys.add(key)
        return key
