"""Resizing from a JPEG that was decoded at a part of its size, with exact geometry."""

from __future__ import annotations

from zephon_vision.headers import Header
from zephon_vision.policies.base import Pixels, Plan, Resize

GAP = 2
"""How many times larger than the target a scaled picture must be, so that the resizer's filter still decides how it looks."""


class NotWholeError(Exception):
    """The policy resized something else than the whole image, so it needs the real one."""


def scale_for(head: Header, plan: Plan) -> int:
    """By how much a JPEG may be scaled for this plan: 8, 4, 2 or 1. A turned one may not: broken pixels would be at its other end."""
    if head.format != "JPEG" or head.channels not in (1, 3) or head.orientation != 1 or not plan.sizes:
        return 1
    high, wide = (max(size[i] for size in plan.sizes) for i in (0, 1))
    for scale in (8, 4, 2):
        if head.height >= GAP * scale * high and head.width >= GAP * scale * wide:
            return scale
    return 1


class ScaledResize(Resize):
    """Resizes a scaled picture as if it were the whole: libjpeg rounds its sides up, so its last pixels are only partly there."""

    def __init__(self, resize: Resize, whole: Pixels, size: tuple[float, float]) -> None:
        self.backend = resize.backend
        self.used = False
        self._resize = resize
        self._whole = whole
        self._box = (0.0, 0.0, size[1], size[0])
        self._made: list[Pixels] = []
        self.empty = resize.empty  # type: ignore[method-assign]

    def __call__(
        self, rgb: Pixels, size: tuple[int, int], filter: str, box: tuple[float, float, float, float] | None = None
    ) -> Pixels:
        """See `Resize`. Raises `NotWholeError` for anything but the whole picture, and what was made of it here."""
        if any(rgb is one for one in self._made):
            made = self._resize(rgb, size, filter, box)
        elif rgb is self._whole and box is None:
            made = self._resize(rgb, size, filter, self._box)
            self.used = True
        else:
            raise NotWholeError
        self._made.append(made)
        return made
