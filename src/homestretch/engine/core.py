"""The loop: one thread that owns every stream, draft and mark."""
