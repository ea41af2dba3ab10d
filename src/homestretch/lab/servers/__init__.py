"""Servers the lab can start, one file here per engine, found by its name."""
