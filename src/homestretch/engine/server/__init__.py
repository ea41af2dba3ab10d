"""The HTTP side: JSON in, events out. Text and JSON never go below it."""
