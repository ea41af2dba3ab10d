"""The tests of the lab: one file here per part, found by its name."""
