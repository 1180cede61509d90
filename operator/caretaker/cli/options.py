"""What the flags of `plan` ask of every kind. Pure data."""

import msgspec


class PlanOptions(msgspec.Struct, frozen=True):
    """What a kind does not know it leaves alone."""

    wide: bool = False
    samples: tuple[str, ...] = ()  # s3://BUCKET/KEY
