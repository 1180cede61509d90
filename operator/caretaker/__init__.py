"""caretaker: keeps one-off work on every node, S3-driven refreshes and EC2 metadata options as declared."""

__version__ = "0.1.0"
