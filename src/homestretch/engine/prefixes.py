"""Kept prompt states: where they stand, which one fits a new prompt, who goes first when room is short."""
