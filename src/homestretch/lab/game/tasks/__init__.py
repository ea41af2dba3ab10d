"""The Gauntlet's tasks, one file here each."""
