"""The test suite on what caretaker says it runs on: Pythons, oldest and newest dependencies, Kubernetes
versions. What there is: rows.py; how a row is held: hold.py; `python -m matrix` runs them."""
