"""A double of Amazon ECS: clusters, container instances and services, as far as caretaker looks at them.

Ours, because moto's ECS (5.2) says what ECS does not where it matters here: it forgets placementConstraints,
never lowers registeredContainerInstancesCount, has no pages, and lets UpdateService change services that are
INACTIVE or of the DAEMON strategy. docs/design/005-ecs.md names the documents of AWS that each of these goes
by.
"""
