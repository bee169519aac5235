def demo() -> None:
    """Stub."""
