"""The second target of a DaemonTask: an Amazon ECS service with one task on every container instance.

reader.py  SQS  --notices-->  instances.py (does it count otherwise?)  -->  plan.py (which cluster, when)
work.py    a look at a cluster:  check.py says the next call, one after another, three at most; placement.py
           what of a service's description decides whether it is kept, and which instances count
"""
