"""`python -m rarely` is the command `rarely`."""

from rarely.cli import main

if __name__ == "__main__":
    main()
