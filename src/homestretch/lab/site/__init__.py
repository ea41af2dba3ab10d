"""Static pages from setups: templates, charts, tables. `build(setups, out)` is the door."""

from homestretch.lab.site.build import Built, build

__all__ = ["Built", "build"]
