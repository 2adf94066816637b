"""JSON lists of typed objects, of which no more than a few are made, however many a server sends."""

from typing import Generic, TypeVar

import msgspec

from llm_locust.wire.payload import PayloadError

T = TypeVar("T")


class Few(msgspec.Struct, Generic[T], array_like=True, gc=False):
    """Up to four objects. Five are made: the rest of the list is skipped."""

    first: T | msgspec.UnsetType = msgspec.UNSET
    second: T | msgspec.UnsetType = msgspec.UNSET
    third: T | msgspec.UnsetType = msgspec.UNSET
    fourth: T | msgspec.UnsetType = msgspec.UNSET
    fifth: T | msgspec.UnsetType = msgspec.UNSET

    def all(self) -> list[T]:
        """The objects.

        Raises:
            PayloadError: there are more.
        """
        found: tuple[T | msgspec.UnsetType, ...] = msgspec.structs.astuple(self)
        if found[-1] is not msgspec.UNSET:
            raise PayloadError(f"more than {len(found) - 1} objects")
        return [item for item in found if not isinstance(item, msgspec.UnsetType)]


class Several(Few[T], Generic[T], array_like=True, gc=False):
    """Up to 16 objects. To make 17 takes no longer than to make five, in a document that comes once."""

    o6: T | msgspec.UnsetType = msgspec.UNSET
    o7: T | msgspec.UnsetType = msgspec.UNSET
    o8: T | msgspec.UnsetType = msgspec.UNSET
    o9: T | msgspec.UnsetType = msgspec.UNSET
    o10: T | msgspec.UnsetType = msgspec.UNSET
    o11: T | msgspec.UnsetType = msgspec.UNSET
    o12: T | msgspec.UnsetType = msgspec.UNSET
    o13: T | msgspec.UnsetType = msgspec.UNSET
    o14: T | msgspec.UnsetType = msgspec.UNSET
    o15: T | msgspec.UnsetType = msgspec.UNSET
    o16: T | msgspec.UnsetType = msgspec.UNSET
    o17: T | msgspec.UnsetType = msgspec.UNSET
