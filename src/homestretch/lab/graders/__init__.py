"""Verdicts on answers; pure functions of published rules."""
