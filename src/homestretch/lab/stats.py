"""Medians, spreads, intervals: the arithmetic behind every number."""
