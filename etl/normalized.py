"""What becomes of an image that can be used. Light: most processes handle it and decode nothing."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Normalized:
    """A normalised image: ``encoded`` as configured; exact sums of its pixels and of their squares by channel.

    ``height`` and ``width`` are its own, the source's sides those that its file states.
    """

    encoded: bytes
    height: int
    width: int
    sums: list[int]
    squares: list[int]
    source_format: str
    source_width: int
    source_height: int
