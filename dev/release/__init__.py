"""`make release`: all files of a release, from a commit into dist/; the same commit gives the same bytes.

What it takes: checks.py. What the files are: documents.py (pure), python.py, bundles.py, images.py. Nothing
of it publishes. `make release-check` takes dist/ alone: check.py, dist.py; publish.py puts it into a registry
of its own.
"""
