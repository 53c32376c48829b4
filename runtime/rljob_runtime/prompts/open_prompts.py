"""The one account of a run's prompts that were begun and not trained on. Pure.

It knows prompts by their positions in the training stream, counted from 0.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from rljob_runtime.prompts.schedule import PromptState


@dataclass(slots=True, kw_only=True)
class OpenPrompts:
    """first_new: position of the first prompt that was never begun. open: positions that were begun and are
    not done with; under_way: those among them that samples are made of, or lie in a batch."""

    first_new: int = 0
    open: set[int] = field(default_factory=set)
    under_way: set[int] = field(default_factory=set)

    def take(self, count: int) -> tuple[int, ...]:
        """The first positions that are open and not under way, and then new ones."""
        again = sorted(self.open - self.under_way)[:count]
        new = range(self.first_new, self.first_new + count - len(again))
        self.first_new = new.stop
        taken = (*again, *new)
        self.open.update(taken)
        self.under_way.update(taken)
        return taken

    def close(self, positions: Iterable[int]) -> None:
        """These are done with."""
        self.open.difference_update(positions)
        self.under_way &= self.open

    def give_back(self, positions: Iterable[int]) -> None:
        """What was made of these is lost; they are taken again."""
        self.under_way.difference_update(positions)

    def start_over(self) -> None:
        """All that is under way is lost."""
        self.under_way.clear()

    def state(self) -> PromptState:
        """Open prompts are begun anew."""
        return PromptState(first_new_prompt=self.first_new, open_prompts=sorted(self.open))

    def restore(self, state: PromptState) -> None:
        """As `state` left it."""
        self.first_new, self.open = state.first_new_prompt, set(state.open_prompts)
        self.under_way.clear()
