"""The lab: measures any OpenAI-compatible server and keeps every raw byte. Knows nothing of `homestretch.engine`; no torch."""
