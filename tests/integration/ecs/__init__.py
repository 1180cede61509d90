"""DaemonTasks with an ECS target."""
