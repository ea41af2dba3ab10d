"""The engine: serves a model through an OpenAI-compatible API. Never imports `homestretch.lab`."""
