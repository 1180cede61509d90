"""The double's clock: the machine's, shifted, a faster one, or one that stands still until a test moves it.

All waiting of the double (pending to applied, buckets that refill) reads it, so a test can let minutes pass
in no time. Faster than the machine's it keeps pace with an operator whose time is scaled: what both count in
seconds stays as it would be. Unix seconds; the machine's clock being set does not move it.
"""

import time


class Clock:
    """Runs with the machine's, or `speed` times as fast, until `stop`; `advance` works either way."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """The machine's time, at its pace."""
        self.speed = 1.0
        self._ahead = time.time() - time.monotonic()
        self._stopped: float | None = None

    @property
    def running(self) -> bool:
        """False between `stop` and `go`."""
        return self._stopped is None

    def now(self) -> float:
        """Unix seconds."""
        return time.monotonic() * self.speed + self._ahead if self._stopped is None else self._stopped

    def advance(self, seconds: float) -> None:
        """Let time pass; never backwards."""
        if seconds < 0:
            raise ValueError("time does not run backwards")
        if self._stopped is None:
            self._ahead += seconds
        else:
            self._stopped += seconds

    def run_at(self, speed: float) -> None:
        """From now on so many seconds pass in one of the machine's."""
        if speed <= 0:
            raise ValueError("a clock's speed is above 0")
        now = self.now()
        self.speed = speed
        self._ahead = now - time.monotonic() * speed

    def stop(self) -> None:
        """Stand still."""
        self._stopped = self.now()

    def go(self) -> None:
        """Run on from where it stood."""
        if self._stopped is not None:
            self._ahead = self._stopped - time.monotonic() * self.speed
            self._stopped = None
