"""Static pages from setups: templates, charts, tables."""
