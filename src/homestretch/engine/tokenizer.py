"""Text to ids and back: a tokenizer built from a checkpoint, and streaming that never splits a character."""
