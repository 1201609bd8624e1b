"""How far a run is: what its checkpoints and its newcomers must know besides tensors."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Position:
    """Iterations done, the first sample of the next one, optimizer steps taken, fp16's scale."""

    iteration: int = 0
    next_sample: int = 0
    num_updates: int = 0
    loss_scale: float = 1.0

    def numbers(self) -> tuple[float, ...]:
        """Return it as numbers that a message can carry."""
        return self.iteration, self.next_sample, self.num_updates, self.loss_scale

    @classmethod
    def of_numbers(cls, numbers: list[float]) -> Position:
        """Return what numbers() says."""
        iteration, next_sample, num_updates, loss_scale = numbers
        return cls(int(iteration), int(next_sample), int(num_updates), loss_scale)
