"""Every refusal of the lab; each message says what was refused, the value, what is allowed and what to do."""

from __future__ import annotations


class LabError(Exception):
    """Base; the command line prints the message and exits 1."""

    exit_code = 1


class WrongUse(LabError):
    """An option, card or file that cannot be used as given."""

    exit_code = 2


class ServerFailed(LabError):
    """The measured server did not start, died, or answered what no measurement can use."""


class BrokenRun(LabError):
    """A run folder whose files do not hold what its manifest or contract says."""


class Undecided(LabError):
    """A part that could not be measured undisturbed."""

    exit_code = 3
