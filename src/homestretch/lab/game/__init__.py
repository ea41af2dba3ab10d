"""The Gauntlet: seasons, tasks, verifiers, the race."""
