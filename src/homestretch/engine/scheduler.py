"""Who runs next and how many rows: pure decisions, no torch, no clock, no I/O."""
