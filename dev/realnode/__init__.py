"""A real node without a container engine: kubelet, containerd and kube-proxy in namespaces of their own.

Used by tests/node and `make e2e-node`, with images built from the project's Dockerfile. It needs root on
Linux; `needs` tells what else. Links, routes, firewall and mounts of the machine stay as they are: all of
them are the namespaces' own and end with them.
"""
