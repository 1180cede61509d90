"""The testbed: a real Kubernetes control plane with fake nodes, on this machine alone.

Used by the Makefile (`python -m testbed`), the tests, the benchmarks and the demo. It is no part of
the operator and imports nothing of it.
"""
