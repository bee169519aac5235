"""The command line: parse, call the library, print. Nothing here imports torch before a command runs."""

from rarely.cli.app import main

__all__ = ["main"]
