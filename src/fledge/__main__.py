"""`python -m fledge`, as torchrun starts it."""

from fledge.commands.main import main

main()
