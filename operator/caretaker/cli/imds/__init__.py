"""What the commands show of IMDSPolicies."""
