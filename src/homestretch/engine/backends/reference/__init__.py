"""The reference backend: every operation in plain torch, fp32, one decode row at a time. Slow, and the truth."""
