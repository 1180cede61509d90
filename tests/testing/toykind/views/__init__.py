"""PoolStamp, as `plan` and `status` show it."""
