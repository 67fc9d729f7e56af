"""`python -m fledge`, as torchrun starts it."""

from fledge.cli import main

main()
