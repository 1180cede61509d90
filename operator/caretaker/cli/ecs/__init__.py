"""What `plan` and `status` show of a DaemonTask with an ECS target."""
