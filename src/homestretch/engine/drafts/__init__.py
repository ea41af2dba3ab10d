"""Drafters propose tokens; they can only cost time. One file here per kind."""
