"""The second target of a DaemonTask: an Amazon ECS service with one task on every container instance.

reader.py  SQS  --notices-->  instances.py (does the count change?)  -->  plan.py (which cluster, when)
worker.py  checks a cluster: check.py yields its calls, at most three; placement.py decides from the
           service's description whether the service is kept, and which container instances count
"""
