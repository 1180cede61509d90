"""IMDSPolicy, as `plan` and `status` show it."""
