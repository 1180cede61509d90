"""What a month of ten clusters costs, ours beside the function of 2017: counted calls times list prices.

Prices: us-east-1, 2026, no free tiers, in dollars. Calls to ECS are free, and so are the events that AWS's
own services send to the default bus. The load is assumed and the same for both: what the article leaves open
is named here. Ours holds no share of the cluster that the operator runs in, nor does the function's hold what
CloudWatch shows.
"""

from typing import Final

from bench.figures import Figure

MILLION: Final = 1_000_000
HOURS: Final = 730
CLUSTERS: Final = 10
INSTANCES: Final = 20  # in each
# An hour of one container instance: agents reconnect "several times" (ECS developer guide), and a task starts
# or stops now and then, each an event.
EVENTS: Final = 10
EVENTS_MONTH: Final = CLUSTERS * INSTANCES * EVENTS * HOURS

# Amazon SQS, Standard queues, per request; EventBridge sends a message each. https://aws.amazon.com/sqs/pricing/
SQS: Final = 0.40 / MILLION
POLL_SECONDS: Final = 20

# AWS Lambda, x86, per request and GB-second; 128 MB for the 0.3 s that the article measured at most.
# https://aws.amazon.com/lambda/pricing/
LAMBDA: Final = 0.20 / MILLION + 0.3 * 128 / 1024 * 0.0000166667
# Amazon CloudWatch Logs, per GB: START, END, REPORT of each invocation. https://aws.amazon.com/cloudwatch/pricing/
LOGS: Final = 600 * 0.50 / 1e9


def costs() -> list[Figure]:
    """The table."""
    polls = HOURS * 3600 / POLL_SECONDS * SQS
    # Sent once; received and deleted by tens at best and one by one at worst, which is taken here.
    ours = polls + EVENTS_MONTH * 3 * SQS
    function = EVENTS_MONTH * (LAMBDA + LOGS)
    load = f"{CLUSTERS} clusters of {INSTANCES} instances, {EVENTS} events an hour of each"
    return [
        Figure("cost of a month, ours", ours, "$", "<= 2", f"{load}; SQS, one request for each step"),
        Figure("cost of a month, the function", function, "$", "", "Lambda and its logs, the same load"),
        Figure("cost of an idle month, ours", polls, "$", "", "long polls of one queue"),
    ]
