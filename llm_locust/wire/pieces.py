"""A text that comes in pieces."""

from llm_locust.wire.payload import well_formed


class Pieces(list[str]):
    """The pieces of one text, in order. A reader appends to it; :meth:`fold` keeps them few.

    However a text was cut and folded, :meth:`finish` leaves the same: surrogate pairs joined over pieces,
    lone surrogates as U+FFFD.
    """

    __slots__ = ("_folded",)

    def __init__(self) -> None:
        super().__init__()
        self._folded = 0  # pieces that are well formed, and are not joined again

    def fold(self) -> None:
        """Join the pieces that have come since the last time."""
        begin = self._folded
        if begin == len(self):
            return
        text = "".join(self[begin:])
        rest = text[-1:] if "\ud800" <= text[-1:] <= "\udbff" else ""  # its other half may follow
        whole = well_formed(text[: len(text) - len(rest)])
        self[begin:] = [piece for piece in (whole, rest) if piece]
        self._folded = begin + bool(whole)

    def finish(self) -> None:
        """Nothing follows."""
        self.fold()
        self[self._folded :] = [well_formed(piece) for piece in self[self._folded :]]
        self._folded = len(self)

    def cut(self, most: int) -> bool:
        """Keep the first ``most`` characters; gives whether there were more."""
        for place, piece in enumerate(self):
            if len(piece) > most:
                self[place:] = [piece[:most]]
                return True
            most -= len(piece)
        return False
