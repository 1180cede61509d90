"""What people watch the operator with: the page of its metrics, its alerts, dashboard, a picture of it.

Nothing here is part of the operator.
"""
