"""`python -m homestretch`: the same door as the `homestretch` command."""

from homestretch.cli import main

main()
