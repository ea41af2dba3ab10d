"""What leaves the machine: the filter, the held-back list, the raw tree; `publish(runs, site)` is the door."""

from homestretch.lab.publish.filter import Filter
from homestretch.lab.publish.runs import PublishedRun, preview, publish

__all__ = ["Filter", "PublishedRun", "preview", "publish"]
