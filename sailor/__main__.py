"""`python -m sailor`."""

from sailor.cli import main

if __name__ == "__main__":
    main()
