"""IMDSPolicy, as `plan` and `status` show it."""

from typing import Final

KEY: Final = "policies"
