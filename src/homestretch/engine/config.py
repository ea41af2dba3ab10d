"""What a person may set, from the command line; the only file that reads the environment."""
