"""The independent recount: reads raw files and counts again with code of its own."""
