"""A package with games for tests, as an installed one: its own folder with its entry points."""

from pathlib import Path

GAMES = '''
import os, random, time

class Countdown:
    """Say how many moves are left; the one that says 0 wins. `start` at most."""

    def __init__(self, params):
        self.start, self.left = params.get("start", 3), 0
        self.wide = params.get("width", 0)
        self.fails = params.get("fails", 0)

    def reset(self, seed):
        self.left = 1 + seed % self.start
        return f"{self.left}:" + "-" * (self.wide if seed % 3 == 1 else 0)

    def step(self, text):
        self.left -= 1
        said = text.strip()
        if said == "die":
            os._exit(7)
        if said == "sleep":
            time.sleep(600)
        if said == "raise" or (self.fails and len(text) % self.fails == 0):
            raise RuntimeError("no such move")
        if said == "nan":
            return "", float("nan"), False
        if said == "half":
            return "\\udc00", 0.0, False
        return f"{self.left}:", 1.0 if said == str(self.left) else -0.5, self.left == 0

    def demonstrate(self, seed):
        return [str(n) for n in reversed(range(1 + seed % self.start))]


class Dice:
    """Each move is answered with a throw of Python's and numpy's own dice."""

    def __init__(self, params):
        import numpy

        self.numpy = numpy

    def reset(self, seed):
        return self._throw()

    def step(self, text):
        return self._throw(), 0.0, False

    def _throw(self):
        return f"{random.randrange(10**9)} {self.numpy.random.randint(10**9)}"


class Clock(Dice):
    """Never the same again."""

    def _throw(self):
        return str(time.monotonic_ns())


class Broken:
    def __init__(self, params):
        raise ValueError("no board")


class Mute(Countdown):
    def reset(self, seed):
        return " "


class Half(Countdown):
    """Shows half of a surrogate pair."""

    def reset(self, seed):
        return "a\\ud800"


def half_answers(params):
    return lambda text: text + "\\ud800"
'''
NAMES = {"acme.countdown": "Countdown", "acme.dice": "Dice", "acme.clock": "Clock",
         "acme.broken": "Broken", "acme.mute": "Mute", "acme.half": "Half"}  # fmt: skip


def install(folder: Path) -> Path:
    """Returns the folder that belongs on the path."""
    info = folder / "acme_games-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / "acme_games.py").write_text(GAMES)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-games\nVersion: 1.0\n")
    lines = [f'"{name}" = acme_games:{made}' for name, made in NAMES.items()]
    lines = [line.replace('"', "") for line in lines]
    lines = ["[rljob.environments]", *lines, "[rljob.tools]", "acme.half = acme_games:half_answers"]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return folder
