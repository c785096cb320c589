"""Settings for mixing by tokens instead of by records."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from zephon.errors import RecipeError


@dataclass(frozen=True)
class TokenEstimation:
    """Weights count tokens: a data set's records are drawn in proportion to weight / (tokens per record).

    Args:
        primer: "measure": tokenise a sample with the pipeline's own operators; a number: tokens per record for every data set;
            a mapping: tokens per record by name.
        measure: instead of the pipeline's tokenizer: a function `(dict record) -> number of tokens`.
        calibration_samples: records sampled per data set, spread over it: one drawn by key from each of as many parts.

    The sample is a function of the data alone, so all ranks find the same numbers; they are kept in the state, and a restored run does not
    sample again.

    Raises:
        RecipeError: a number that isn't above 0, or another text than "measure".
    """

    primer: Literal["measure"] | float | Mapping[str, float] = "measure"
    measure: Callable[[dict[str, Any]], int] | None = None
    calibration_samples: int = 512

    def __post_init__(self) -> None:
        if self.calibration_samples <= 0:
            raise RecipeError(f"calibration_samples is {self.calibration_samples}; it must be > 0")
        if isinstance(self.primer, str) and self.primer != "measure":
            raise RecipeError(f"primer is {self.primer!r}; give 'measure', a number, or a mapping name → tokens per record")
        numbers = (
            self.primer.values() if isinstance(self.primer, Mapping) else [] if isinstance(self.primer, str) else [self.primer]
        )
        for number in numbers:
            if not number > 0:
                raise RecipeError(f"tokens per record must be > 0, got {number!r}")

    def given(self, names: list[str]) -> dict[str, float] | None:
        """The tokens per record where they need no sample; None where they do. Raises `RecipeError` where a mapping lacks one."""
        if isinstance(self.primer, str):
            return None
        if isinstance(self.primer, Mapping):
            missing = [n for n in names if n not in self.primer]
            if missing:
                raise RecipeError(f"TokenEstimation(primer=…) has no tokens per record for data set {missing[0]!r}")
            return {n: float(self.primer[n]) for n in names}
        return dict.fromkeys(names, float(self.primer))
