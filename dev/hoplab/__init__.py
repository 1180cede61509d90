"""A lab of the EC2 metadata hop limit, on one Linux machine: network namespaces and a fake IMDS.

The answer to an IMDSv2 token request leaves the fake with the hop limit as its IP TTL, so that routers
drop it where those of EC2 would. Sources: docs of EC2, "Configure the Instance Metadata Service options"
and "Use the Instance Metadata Service to access instance metadata".
"""
