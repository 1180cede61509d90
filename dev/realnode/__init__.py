"""Real nodes: a kind cluster in the container engine that answers, or in one of our own.

Used by tests/node, `make e2e-kind` and `make demo CLUSTER=kind`, with images built from the project's
Dockerfile. An engine of our own needs root on Linux; `needs` tells what else. Links, routes, firewall and
mounts of the machine stay as they are: all of them are the engine's namespaces' own and end with them.
"""
