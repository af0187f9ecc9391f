"""The section `distill` of a configuration: learning from another model's predictions."""

import dataclasses

from qkvflow.errors import UserError
from qkvflow.zoo.options import option


@dataclasses.dataclass(frozen=True)
class DistillConfig:
    teacher: str | None = option(
        None, "A run directory or export whose predictions are learnt; none: the text alone."
    )
    sha256: str | None = option(None, "Set when a run begins: the sha256 of the teacher's weights.")
    weight: float = option(
        0.5, "Of the teacher's predictions, from 0 to 1; the rest is that of the text itself."
    )
    temperature: float = option(
        1.0, "Logits of both are divided by it before they are compared (Hinton et al. 2015)."
    )

    def __post_init__(self) -> None:
        if not 0.0 <= self.weight <= 1.0:
            raise UserError(f"distill.weight must be from 0 to 1, not {self.weight}")
        if not self.temperature > 0.0:
            raise UserError(f"distill.temperature must be positive, not {self.temperature}")
