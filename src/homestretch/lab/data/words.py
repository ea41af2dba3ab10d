"""English words for generated texts: the lists of the package wonderwords, checked by hash so that every machine has the same."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import resources

from homestretch.lab.errors import WrongUse

PINNED = {
    "nounlist.txt": "8d88b3ebc2e2969ed92ebe49cdb0c8a87c2ad3b27493d7afdff608f2e51c5bc9",
    "adjectivelist.txt": "66814d46b7e292c83e839d12fe2fa083c8f66779b14b294e1be4e1342c5d4131",
}
# Words nobody wants to meet in a test text.
LEFT_OUT = frozenset(
    {"ass", "anus", "bra", "breast", "corpse", "genitals", "gun", "nipple", "penis", "sex", "slave", "suicide", "vagina", "weapon"}
)


@cache
def words(kind: str) -> tuple[str, ...]:
    """kind: "noun" (about 6,100) or "adjective" (about 850); lower-case words of 3 to 10 letters, each once, sorted."""
    name = f"{kind}list.txt"
    try:
        data = (resources.files("wonderwords") / "assets" / name).read_bytes()
    except (ModuleNotFoundError, FileNotFoundError):
        raise WrongUse(
            "long texts need the word lists of wonderwords; install them with `pip install homestretch[quality]`"
        ) from None
    digest = hashlib.sha256(data).hexdigest()
    if digest != PINNED[name]:
        raise WrongUse(
            f"the word list {name} has sha256 {digest[:16]}…, the generators are made for {PINNED[name][:16]}…; "
            "install the version that constraints.txt names, or long texts would differ from everybody else's"
        )
    found = {
        word for word in data.decode().split() if word.isascii() and word.isalpha() and word.islower() and 3 <= len(word) <= 10
    }
    return tuple(sorted(found - LEFT_OUT))
