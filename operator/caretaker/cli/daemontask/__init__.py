"""DaemonTask, as `plan` and `status` show it."""
