"""S3AggregatedRefresh, as `plan` and `status` show it."""
