"""Places where the operator waits, to die at any of them.

Every exchange with `memory_api` and `memory_ray` comes by here before it takes effect and again before its
answer is heard: who dies at the first has asked for nothing, who dies at the second has, and does not know.
"""

import functools
import sys
from pathlib import Path
from types import CodeType, FrameType

Place = tuple[str, int, int, int, int]  # file, line, last line, column, last column


class Killed(BaseException):
    """The process died here."""


class Pauses:
    """Where the operator waits. kill_at: number of the pause that it dies at.

    seen: of each pause, the operator's awaits that lead to it, and whether the exchange writes.
    """

    def __init__(self, package: Path, *, begin: int = 0, kill_at: int | None = None) -> None:
        self.count, self.kill_at, self.dead = begin, kill_at, False
        self.seen: list[tuple[frozenset[Place], bool]] = []
        self._package = str(package)

    async def __call__(self, *, writes: bool = False) -> None:
        """One place to die at; whoever is dead does nothing any more."""
        places: set[Place] = set()
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if frame.f_code.co_filename.startswith(self._package):
                places.add(_place(frame.f_code, frame.f_lasti))
            frame = frame.f_back
        self.seen.append((frozenset(places), writes))
        if self.dead or self.count == self.kill_at:
            self.dead = True
            raise Killed
        self.count += 1

    def born_again(self) -> None:
        """A new process, which nobody kills."""
        self.dead, self.kill_at = False, None


@functools.cache
def _place(code: CodeType, instruction: int) -> Place:
    line, last_line, column, last_column = list(code.co_positions())[instruction // 2]
    assert line and last_line and column is not None and last_column is not None
    return (Path(code.co_filename).name, line, last_line, column, last_column)
