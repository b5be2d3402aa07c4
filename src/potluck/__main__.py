"""`python -m potluck` is `potluck`."""

from potluck.cli import main

main()
