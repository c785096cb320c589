"""No resizing: what operators take that crop and turn images themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from zephon_vision.policies.base import Pixels, Plan, Policy, Resize, SpecialIds
from zephon_vision.policies.blocks import chw


@dataclass(frozen=True, kw_only=True)
class Raw(Policy):
    """The image as it is, one block uint8[3, height, width]: for operators that crop and turn, such as `random_resized_crop`."""

    name = "raw"
    planar = True

    def plan(self, height: int, width: int, *, images: int = 1) -> Plan:  # noqa: ARG002 - the same for any number of images
        """One block of the image's own size."""
        return Plan(height, width)

    def render(self, rgb: Pixels, plan: Plan, resize: Resize) -> Pixels:  # noqa: ARG002 - the plan says nothing
        """Channels first."""
        return chw(rgb, resize.empty)

    def block_shape(self, plan: Plan) -> tuple[int, ...]:
        """[1, 3, height, width]."""
        return (1, 3, plan.height, plan.width)

    def token_run(self, plan: Plan, ids: SpecialIds) -> list[int]:  # noqa: ARG002 - there is none
        """No tokens."""
        return []

    def fields(self, plans: Sequence[Plan]) -> dict[str, npt.NDArray[np.int64]]:  # noqa: ARG002 - pixels are all there is
        """None."""
        return {}
