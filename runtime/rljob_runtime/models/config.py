"""A Hugging Face config.json, checked while it is read.

The families translate it to an `Architecture`; other modules read single entries.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rljob_api.model.config_sizes import most_of
from rljob_api.spec.json_text import read_json
from rljob_api.spec.messages import show
from rljob_runtime.errors import ConfigError


class UnsupportedArchitecture(ConfigError):
    """The decoder cannot compute this model; the message gives the reason."""


def read_config(path: Path) -> dict[str, object]:
    """Return the directory's config.json. Raises ConfigError if it is missing or not a JSON object."""
    file = path / "config.json"
    try:
        config = read_json(file)
    except FileNotFoundError:
        raise ConfigError(
            f"{path} holds no config.json; name a Hugging Face model directory"
        ) from None
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{file} cannot be read: {error}; copy the model directory again"
        ) from error
    if not isinstance(config, dict):
        raise ConfigError(f"{file} is not a JSON object; copy the model directory again")
    return config


@dataclass(frozen=True, slots=True)
class Config:
    """The entries of one architecture's config.json.

    A default replaces an entry that is missing or null; an entry without a default is required.
    """

    name: str
    entries: Mapping[str, object]

    def with_defaults(self, defaults: Mapping[str, object]) -> "Config":
        """Return a copy in which these values replace missing entries."""
        present = {key: value for key, value in self.entries.items() if value is not None}
        return Config(self.name, {**self.entries, **defaults, **present})

    def get(self, key: str) -> object:
        """Return the entry unchecked, None if it is missing."""
        return self.entries.get(key)

    def integer(self, key: str, default: int | None = None) -> int:
        """Return a positive integer. Raises ConfigError for anything else, and for one larger than any model
        has."""
        value, most = self._value(key, default), most_of(key)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ConfigError(f"{key}={show(value)} in config.json is not a positive integer")
        if value > most:
            raise ConfigError(f"{key}={show(value)} in config.json is more than {most}")
        return value

    def number(self, key: str, default: float) -> float:
        """Return a finite number. Raises ConfigError for anything else."""
        value = self._value(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise ConfigError(f"{key}={show(value)} in config.json is not a number")
        if not abs(value) <= sys.float_info.max:
            raise ConfigError(f"{key}={show(value)} in config.json is not a finite number")
        return float(value)

    def flag(self, key: str, default: bool = False) -> bool:
        """Return the entry as a boolean switch."""
        return bool(self._value(key, default))

    def integers(self, key: str) -> list[int]:
        """Return a list of integers, empty if the entry is missing. Raises ConfigError for anything else."""
        value = self._value(key, [])
        if not isinstance(value, list) or not all(isinstance(item, int) for item in value):
            raise ConfigError(f"{key}={show(value)} in config.json is not a list of integers")
        return value

    def mapping(self, key: str) -> dict[str, object]:
        """Return an object, empty if the entry is missing. Raises ConfigError for anything else."""
        value = self._value(key, {})
        if not isinstance(value, dict):
            raise ConfigError(f"{key}={show(value)} in config.json is not an object")
        return value

    def require(self, key: str, *supported: object) -> None:
        """Raise UnsupportedArchitecture unless the entry is one of `supported`, or missing."""
        value = self.entries.get(key)
        if value is not None and value not in supported:
            listed = " or ".join(str(item) for item in supported)
            raise UnsupportedArchitecture(f"{key}={value} is not {listed} ({self.name})")

    def _value(self, key: str, default: object) -> object:
        value = self.entries.get(key)
        return default if value is None else value
