"""Append-only raw files of a run folder."""
