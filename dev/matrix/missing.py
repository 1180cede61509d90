"""The error of a row that cannot be held."""


class Missing(Exception):  # noqa: N818
    """This machine cannot hold the row; the message says what it lacks."""
