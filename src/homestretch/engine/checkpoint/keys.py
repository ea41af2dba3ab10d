"""A config read by typed key: what is missing, of another type, out of range or never asked for is refused by its name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatchcase
from math import isfinite
from typing import Any

from homestretch.engine.errors import CheckpointError

MISSING: Any = object()


class Keys:
    """Reads `config` once, key by key; `finish` refuses every key that nothing read and nothing declared harmless.

    where: how errors name the file. A default makes a key optional; a key that is present with the value None counts as absent.
    """

    def __init__(self, config: Mapping[str, Any], where: str) -> None:
        self._config, self._where = config, where
        self._seen: set[str] = set()

    def has(self, key: str) -> bool:
        """True when the key is present and not None. Does not count as reading it."""
        return self._config.get(key) is not None

    def whole(self, key: str, default: Any = MISSING, *, low: int = 1, high: int = 2**31 - 1) -> int:
        """A whole number within [low, high]."""
        value = self._get(key, default)
        if value is default:
            return value  # type: ignore[no-any-return]
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.refusal(key, value, "a whole number")
        if not low <= value <= high:
            raise self.refusal(key, value, f"a whole number from {low} to {high}")
        return value

    def real(self, key: str, default: Any = MISSING, *, low: float = 0.0, high: float = 1e30) -> float:
        """A finite number within [low, high]."""
        value = self._get(key, default)
        if value is default:
            return value  # type: ignore[no-any-return]
        return self._real(key, value, low, high)

    def reals(self, key: str, default: Any = MISSING, *, low: float = -1e30, high: float = 1e30) -> tuple[float, ...]:
        """A list of finite numbers."""
        value = self._get(key, default)
        if value is default:
            return value  # type: ignore[no-any-return]
        if not isinstance(value, list | tuple):
            raise self.refusal(key, value, "a list of numbers")
        return tuple(self._real(key, item, low, high) for item in value)

    def flag(self, key: str, default: Any = MISSING) -> bool:
        """True or False."""
        value = self._get(key, default)
        if value is not default and not isinstance(value, bool):
            raise self.refusal(key, value, "true or false")
        return value  # type: ignore[no-any-return]

    def text(self, key: str, default: Any = MISSING) -> str:
        """A string."""
        value = self._get(key, default)
        if value is not default and not isinstance(value, str):
            raise self.refusal(key, value, "a text")
        return value  # type: ignore[no-any-return]

    def texts(self, key: str, default: Any = MISSING) -> tuple[str, ...]:
        """A list of strings."""
        value = self._get(key, default)
        if value is default:
            return value  # type: ignore[no-any-return]
        if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
            raise self.refusal(key, value, "a list of texts")
        return tuple(value)

    def interval(self, key: str, default: Any = MISSING) -> tuple[float, float]:
        """Two numbers, the second not below the first; infinity may be written as JSON has it or as {"__float__": "Infinity"}."""
        value = self._get(key, default)
        if value is default:
            return value  # type: ignore[no-any-return]
        try:
            low, high = (float(item["__float__"] if isinstance(item, Mapping) else item) for item in value)
        except (TypeError, ValueError, KeyError):
            raise self.refusal(key, value, "a list of two numbers") from None
        if not low <= high:
            raise self.refusal(key, value, "two numbers in ascending order")
        return low, high

    def expect(self, key: str, *allowed: Any, default: Any = MISSING) -> Any:
        """A value that must be one of `allowed`: anything else would change the arithmetic in a way that nobody wrote here."""
        value = self._get(key, default)
        same = any(value == item and isinstance(value, bool) == isinstance(item, bool) for item in allowed)
        if value is not default and not same:
            raise self.refusal(key, value, " or ".join(repr(item) for item in allowed))
        return value

    @contextmanager
    def inside(self, key: str) -> Iterator[Keys]:
        """The keys of a nested object, closed when the block ends; an absent object has no keys."""
        value = self._get(key, {})
        if not isinstance(value, Mapping):
            raise self.refusal(key, value, "an object")
        nested = Keys(value, f"{self._where}: {key}")
        yield nested
        nested.finish()

    def ignore(self, *patterns: str) -> None:
        """Keys (names or shell patterns) that change no arithmetic, or that others have read."""
        self._seen.update(key for key in self._config if any(fnmatchcase(key, pattern) for pattern in patterns))

    def finish(self) -> None:
        """Refuse the keys that are left, by name."""
        left = sorted(set(self._config) - self._seen)
        if left:
            shown = ", ".join(f"{key} = {short(self._config[key])}" for key in left[:3])
            more = f" and {len(left) - 3} more" if len(left) > 3 else ""
            raise CheckpointError(
                f"{self._where}: unknown config key {shown}{more}; a key that nothing reads could change the result"
            )

    def refusal(self, key: str, value: Any, allowed: str) -> CheckpointError:
        """The error for a value that is not supported."""
        return CheckpointError(f"{self._where}: {key} = {short(value)} is not supported; allowed: {allowed}")

    def _get(self, key: str, default: Any) -> Any:
        self._seen.add(key)
        value = self._config.get(key)
        if value is not None:
            return value
        if default is MISSING:
            raise CheckpointError(f"{self._where}: config key {key} is missing")
        return default

    def _real(self, key: str, value: Any, low: float, high: float) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
            raise self.refusal(key, value, "a finite number")
        if not low <= value <= high:
            raise self.refusal(key, value, f"a number from {low:g} to {high:g}")
        return float(value)


def short(value: Any) -> str:
    """A value for a message: on one line, 60 characters at most."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
