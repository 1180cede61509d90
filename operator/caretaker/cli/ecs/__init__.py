"""The output of `plan` and `status` for a DaemonTask with an ECS target."""
