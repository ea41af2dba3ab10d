"""What leaves the machine: the filter, the held-back list, the raw tree."""
