"""No images: what `tokenize_interleaved(images=None)` takes, so that text needs no tokenizer with tokens for images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NoReturn

import numpy as np
import numpy.typing as npt

from zephon.errors import DataError, InternalError
from zephon_vision.policies.base import Pixels, Plan, Policy, Resize, SpecialIds


@dataclass(frozen=True, kw_only=True)
class NoImages(Policy):
    """Refuses every image."""

    name: ClassVar[str] = "none"

    def plan(self, height: int, width: int, *, images: int = 1) -> NoReturn:  # noqa: ARG002 - of no size
        """See `Policy`. Raises `DataError` always."""
        raise DataError("a sample has an image, and images=None takes none", hint="name the image policy with images=")

    def render(self, rgb: Pixels, plan: Plan, resize: Resize) -> NoReturn:  # noqa: ARG002
        """See `Policy`; there is no plan to come here with, and so below."""
        raise InternalError("no image was planned")

    def block_shape(self, plan: Plan) -> NoReturn:  # noqa: ARG002
        """See `Policy`."""
        raise InternalError("no image was planned")

    def token_run(self, plan: Plan, ids: SpecialIds) -> NoReturn:  # noqa: ARG002
        """See `Policy`."""
        raise InternalError("no image was planned")

    def fields(self, plans: Sequence[Plan]) -> dict[str, npt.NDArray[np.int64]]:  # noqa: ARG002 - there are none
        """See `Policy`."""
        return {}
