"""Track a run's prompts that were begun and not trained on. Pure.

Prompts are identified by their positions in the training stream, counted from 0.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from rljob_runtime.prompts.schedule import PromptState


@dataclass(slots=True, kw_only=True)
class OpenPrompts:
    """The open prompts of a run. first_new: position of the first prompt that was never begun. open:
    positions that were begun and not finished. under_way: those among them with samples in generation
    or in a batch."""

    first_new: int = 0
    open: set[int] = field(default_factory=set)
    under_way: set[int] = field(default_factory=set)

    def take(self, count: int) -> tuple[int, ...]:
        """Return `count` positions: first those that are open and not under way, then new ones."""
        again = sorted(self.open - self.under_way)[:count]
        new = range(self.first_new, self.first_new + count - len(again))
        self.first_new = new.stop
        taken = (*again, *new)
        self.open.update(taken)
        self.under_way.update(taken)
        return taken

    def close(self, positions: Iterable[int]) -> None:
        """Mark these positions as finished."""
        self.open.difference_update(positions)
        self.under_way &= self.open

    def give_back(self, positions: Iterable[int]) -> None:
        """Return these positions, whose samples are lost, to be taken again."""
        self.under_way.difference_update(positions)

    def start_over(self) -> None:
        """Discard everything that is under way."""
        self.under_way.clear()

    def state(self) -> PromptState:
        """Return the state for a checkpoint, from which all open prompts are begun again."""
        return PromptState(first_new_prompt=self.first_new, open_prompts=sorted(self.open))

    def restore(self, state: PromptState) -> None:
        """Continue from a state that `state` returned."""
        self.first_new, self.open = state.first_new_prompt, set(state.open_prompts)
        self.under_way.clear()
