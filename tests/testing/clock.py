"""A clock that stands until a test moves it, in the place of a module's `time`."""


class Clock:
    """`now` in seconds, for time.monotonic() and time.time()."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        """time.monotonic()."""
        return self.now

    def time(self) -> float:
        """time.time()."""
        return self.now
