"""S3AggregatedRefresh: thousands of S3 events become few, well-scoped refreshes."""
