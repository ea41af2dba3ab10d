"""The independent recount: reads raw files and counts again with code of its own."""

from homestretch.lab.check.pages import check_site
from homestretch.lab.check.report import Report, Row
from homestretch.lab.check.run import check_run
from homestretch.lab.check.signature import Signed, sign, signature_state

__all__ = ["Report", "Row", "Signed", "check_run", "check_site", "sign", "signature_state"]
