"""What a million events cost, ours beside the functions of 2018: counted calls times list prices.

Prices: us-east-1, 2026, no free tiers, in dollars. The functions are those of the article "AWS S3 event
aggregation with Lambda and DynamoDB", their calls counted in its code and setup; what these leave open is
named here. Neither side counts the refreshes themselves, nor ours the operator's share of a cluster.
"""

from typing import Final

from bench.figures import Figure

MILLION: Final = 1_000_000
MONTH_HOURS: Final = 730

# Amazon SQS, Standard queues, per request; a message that S3 sends is one.
SQS: Final = 0.40 / MILLION
POLL_SECONDS: Final = 20  # of a long poll that comes back empty, as Lambda's own are

# AWS Lambda: an invocation for each event, and what its 128 MB cost for an assumed tenth of a second.
LAMBDA: Final = 0.20 / MILLION + 0.1 * 128 / 1024 * 0.0000166667
LAMBDA_POLLERS: Final = 5  # long polls that Lambda keeps open on the queue of the second function

# Amazon DynamoDB: a conditional write for each event, which counts where the condition fails, too. The setup
# provisions 5 read and 5 write units; per unit and hour.
READ_HOUR: Final = 0.00013
WRITE_HOUR: Final = 0.00065
UNITS: Final = 5
BURST: Final = 500  # events a second

# Amazon CloudWatch Logs, per GB: START, END, REPORT and the function's own line at level INFO.
LOGS: Final = 600 * 0.50 / 1e9

# A refresh each window of 30 s: one message is sent, received and deleted, one invocation.
WINDOW_SECONDS: Final = 30


def costs(requests_per_event: float) -> list[Figure]:
    """The table; `requests_per_event` are the operator's, as counted."""
    hours = MILLION / UNITS / 3600  # no event comes sooner than a write unit
    table = hours * UNITS * (READ_HOUR + WRITE_HOUR)
    refreshes = hours * 3600 / WINDOW_SECONDS * (3 * SQS + LAMBDA)
    functions = MILLION * (LAMBDA + LOGS) + table + refreshes
    polls = MONTH_HOURS * 3600 / POLL_SECONDS * SQS
    idle = MONTH_HOURS * UNITS * (READ_HOUR + WRITE_HOUR) + LAMBDA_POLLERS * polls
    return [
        _dollars(
            "a million events, ours",
            MILLION * (1 + requests_per_event) * SQS,
            f"<= {functions:.2f}",
            f"SQS requests: S3's own, and {requests_per_event:.3f} of ours",
        ),
        _dollars(
            "a million events, the functions",
            functions,
            note=f"Lambda {MILLION * LAMBDA:.2f}, logs {MILLION * LOGS:.2f}, DynamoDB {table:.2f} at "
            f"{UNITS} events/s, SQS {refreshes:.2f}",
        ),
        _dollars("an idle month, ours", polls, f"<= {idle:.2f}", "long polls of one queue"),
        _dollars("an idle month, the functions", idle, note="DynamoDB's units, Lambda's long polls"),
        _dollars(
            f"a month of DynamoDB's units for {BURST} events/s, the functions",
            MONTH_HOURS * (BURST * WRITE_HOUR + UNITS * READ_HOUR),
        ),
    ]


def _dollars(figure: str, value: float, target: str = "", note: str = "") -> Figure:
    return Figure(f"cost of {figure}", value, "$", target, note)
