"""Serve a language model on your own machine, measure the setup honestly, publish a page that anyone can recount."""

__version__ = "0.1.0"
