"""IMDSPolicy: EC2 metadata options, held on node groups."""
