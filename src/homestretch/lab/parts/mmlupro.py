"""MMLU-Pro: 400 fixed questions of many subjects with 3 to 10 options, answered by one letter."""

from __future__ import annotations

from homestretch.lab.asking import numbers_of
from homestretch.lab.lettering import LetterPart


class MmluPro(LetterPart):
    name = "mmlupro"
    asks = "How much does it know, across many subjects?"
    numbers = numbers_of("mmlupro")
    set_name = "mmlupro"
    limit = 1024
    house_limit = 128
    asked = 400
    house_asked = 40


PART = MmluPro()
