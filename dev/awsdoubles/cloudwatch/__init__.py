"""A double of Amazon CloudWatch: GetMetricData over datapoints that a test puts in.

A period without datapoints is absent from an answer; nothing is ever filled with zeros.
"""
