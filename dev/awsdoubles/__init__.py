"""Local doubles of the AWS services that caretaker talks to: for tests, the demo and benchmarks.

MiniStack (S3, SNS, EventBridge, SQS), ElasticMQ (a second SQS), a Storage Gateway and an EC2 of our own,
and a fault-injecting proxy for SQS. Loopback only, ports and folders of their own, nothing left running.
"""
