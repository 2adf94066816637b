"""Keys that requests are counted by, bounded in number."""

from collections.abc import Iterable
from typing import Final, NamedTuple

#: Replacement of names, classes or replicas beyond the limit.
OTHERS: Final = "others"

#: Most pairs of name and class, and most keys, with counts of their own. A deployment that restarts for days
#: has ever new replica names.
MOST_PAIRS = 32
MOST_KEYS = 128


class LiveKey(NamedTuple):
    """A request's name, SLO class and replica; ``""`` for none."""

    name: str
    slo_class: str
    replica: str


class KeyLimit:
    """Folds keys beyond the limits; the first ones keep counts of their own.

    A new replica beyond the limit becomes :data:`OTHERS` of its name and class, so that sums by name stay
    correct; so does a new pair of name and class. There are at most ``most_keys + most_pairs + 1`` keys.
    """

    def __init__(self, most_pairs: int = MOST_PAIRS, most_keys: int = MOST_KEYS) -> None:
        self._most_pairs, self._most_keys = most_pairs, most_keys
        self._pairs: set[tuple[str, str]] = set()
        self._keys: set[LiveKey] = set()

    @classmethod
    def of(cls, keys: Iterable[LiveKey]) -> "KeyLimit":
        """The limit that has folded to these keys, in the order of their first requests."""
        limit = cls()
        for key in keys:
            if key == (OTHERS, OTHERS, OTHERS):
                continue
            limit._pairs.add(key[:2])
            if key.replica != OTHERS:
                limit._keys.add(key)
        return limit

    def fold(self, key: LiveKey) -> LiveKey:
        """Return the key to count by."""
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
