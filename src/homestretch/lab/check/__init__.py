"""The independent recount: reads raw files and counts again with code of its own."""

from homestretch.lab.check.report import Report, Row
from homestretch.lab.check.run import check_run
from homestretch.lab.check.signature import signature_state

__all__ = ["Report", "Row", "check_run", "signature_state"]
