"""GPQA Diamond: 198 hard science questions, answered by one letter. Its text stays here: ids, letters, hashes go out."""

from __future__ import annotations

from homestretch.lab.asking import numbers_of
from homestretch.lab.lettering import LetterPart


class Gpqa(LetterPart):
    name = "gpqa"
    asks = "How far does it get with science questions that experts find hard?"
    numbers = numbers_of("gpqa")
    set_name = "gpqa"
    limit = 1024
    house_limit = 128
    asked = 198
    house_asked = 16
    science = True


PART = Gpqa()
