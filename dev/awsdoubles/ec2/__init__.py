"""A double of EC2's instance metadata options, and of the templates and groups that instances come from.

Instances are made in bulk through a control API beside AWS's own, which also sets faults and the clock and
shows every call. It must not forgive: what EC2 refuses, and what its clients send past botocore, is refused.
"""
