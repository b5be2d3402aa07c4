"""`python -m potluck` is `potluck`."""

from potluck.cli import main

__all__: list[str] = []

if __name__ == "__main__":
    main()
