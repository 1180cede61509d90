"""spec.target, all but storageGateway, on a real API server: refusals, and their words."""

from collections.abc import Iterator
from typing import Any

import pytest

from caretaker.registry import S3_AGGREGATED_REFRESH
from testing.customobjects import Objects, Spec, in_own_namespace
from testing.s3refreshes import refresh

ONE = {"buckets": ["media"]}
URL = "https://example.com/purge"


@pytest.fixture(scope="module")
def refreshes(cluster: Any) -> Iterator[Objects]:
    with in_own_namespace(cluster.kubeconfig, S3_AGGREGATED_REFRESH) as own:
        yield own


def job(**fields: Any) -> Spec:
    template = {"spec": {"containers": [{"name": "a", "image": "b"}]}}
    return refresh(filter=ONE, target={"job": {"template": template, **fields}})


def http(**fields: Any) -> Spec:
    return refresh(filter=ONE, target={"http": {"url": URL, **fields}})


def other_queue(account: str, name: str = "events", host: str = "sqs.eu-west-1.amazonaws.com") -> Spec:
    return refresh(filter=ONE, target={"sqs": {"queueURL": f"https://{host}/{account}/{name}"}})


def cloudfront(**fields: Any) -> Spec:
    return refresh(filter=ONE, target={"cloudFront": {"distributionID": "EDFDVBD6EXAMPLE", **fields}})


@pytest.mark.parametrize(
    ("spec", "field", "message"),
    [
        pytest.param(
            {**cloudfront(), "filter": {}},
            "spec.filter.buckets",
            "must name 1 to 64 buckets",
            id="an invalidation for no bucket",
        ),
        pytest.param(
            refresh(filter=ONE, target={"cloudFront": {}}),
            "spec.target.cloudFront.distributionID",
            "Required",
            id="no distribution",
        ),
        *(
            pytest.param(
                cloudfront(distributionID=wrong), "spec.target.cloudFront.distributionID", "must be", id=wrong
            )
            for wrong in ("d1234.cloudfront.net", "arn:aws:cloudfront::1:distribution/E1", "../E1234567")
        ),
        pytest.param(
            refresh(filter=ONE, target={"sns": {"topicARN": "arn:aws:sqs:eu-west-1:123456789012:q"}}),
            "spec.target.sns.topicARN",
            "must be the ARN of an SNS topic",
            id="a queue for a topic",
        ),
        pytest.param(
            refresh(filter=ONE, target={"eventBridge": {"eventBusARN": "default"}}),
            "spec.target.eventBridge.eventBusARN",
            "must be the ARN of an event bus",
            id="the name of a bus",
        ),
        pytest.param(
            refresh(filter=ONE, target={"lambda": {"functionARN": "reindex"}}),
            "spec.target.lambda.functionARN",
            "must be the ARN of a Lambda function",
            id="the name of a function",
        ),
        pytest.param(
            other_queue("123456789012", "q", "sqs.eu-west-2.amazonaws.com"),
            "spec.target.sqs.queueURL",
            "another region than spec.aws.region",
            id="a queue of another region",
        ),
        pytest.param(
            other_queue("123456789012", host="vpce-1.sqs.eu-west-1.vpce.amazonaws.com"),
            "spec.target.sqs.queueURL",
            "which this resource reads itself",
            id="the queue of its events",
        ),
        pytest.param(
            {**other_queue("123456789012", "q"), "filter": {}},
            "spec.filter.buckets",
            "must name 1 to 64 buckets",
            id="a message about no bucket",
        ),
        pytest.param(
            cloudfront(prefix="/site"),
            "spec.target.cloudFront.prefix",
            "with a slash after each",
            id="origin path",
        ),
        pytest.param(
            cloudfront(maxPaths=16),
            "spec.target.cloudFront.maxPaths",
            "less than or equal to 15",
            id="more paths than a call has",
        ),
        pytest.param(
            cloudfront(scope="Files"), "spec.target.cloudFront.scope", "Unsupported value", id="another scope"
        ),
        pytest.param(
            {**job(), "filter": {}},
            "spec.filter.buckets",
            "must name 1 to 64 buckets",
            id="a job for no bucket",
        ),
        pytest.param(
            {**http(), "filter": {"buckets": []}},
            "spec.filter.buckets",
            "must name 1 to 64 buckets",
            id="a call for no bucket",
        ),
        pytest.param(
            {**http(), "filter": {"buckets": [f"bucket-{n}" for n in range(65)]}},
            "spec.filter.buckets",
            "must name 1 to 64 buckets",
            id="more buckets than targets",
        ),
        pytest.param(
            refresh(filter=ONE, target={**job()["target"], **http()["target"]}),
            "spec.target",
            "must have exactly one member",
            id="two targets",
        ),
        pytest.param(
            refresh(filter=ONE, target={"job": {}}), "spec.target.job.template", "Required", id="no template"
        ),
        pytest.param(
            job(template={"metadata": {}}), "spec.target.job.template.spec", "Required", id="no pod in it"
        ),
        pytest.param(
            job(ttlSecondsAfterFinished=0),
            "spec.target.job.ttlSecondsAfterFinished",
            "greater than or equal to 300",
            id="a Job that is deleted before anybody sees it",
        ),
        pytest.param(
            job(backoffLimit=-1), "spec.target.job.backoffLimit", "greater than or equal to 0", id="retries"
        ),
        *(
            pytest.param(http(url=url), "spec.target.http.url", "must be", id=url)
            for url in (
                "ftp://example.com",
                "https://user:password@example.com/",
                "http://example.com\\@169.254.169.254/",
                "http://example.com/#fragment",
                "http://example.com/a b",
                "http://example.com/\n",
            )
        ),
        *(
            pytest.param(
                kind(prefix=prefix), f"spec.target.{name}.prefix", "with a slash after each", id=name + prefix
            )
            for name, kind in (("http", http), ("job", job))
            for prefix in ("site", "/site/", "site//")
        ),
        pytest.param(
            http(prefix="x" * 511 + "/x/"),
            "spec.target.http.prefix",
            "may not be more than 512",
            id="too long",
        ),
        pytest.param(
            http(successCodes=[500]),
            "spec.target.http.successCodes[0]",
            "less than or equal to 499",
            id="500",
        ),
        pytest.param(
            http(timeout="61s"), "spec.target.http.timeout", "from 1s to 60s", id="a timeout that is too long"
        ),
        pytest.param(http(timeout="0s"), "spec.target.http.timeout", "from 1s to 60s", id="no time at all"),
        pytest.param(
            http(headersFrom=[{"secretRef": {}}]),
            "spec.target.http.headersFrom[0].secretRef.name",
            "Required",
            id="headers from nowhere",
        ),
        pytest.param(
            http(headersFrom=[{"secretRef": {"name": "../../b/secrets/keys"}}]),
            "spec.target.http.headersFrom[0].secretRef.name",
            "must be",
            id="headers from a Secret of another namespace",
        ),
    ],
)
def test_refused(refreshes: Objects, spec: Spec, field: str, message: str) -> None:
    status, _, causes = refreshes.refusal(spec)
    assert status == 422
    assert [said for at, said in causes if at == field and message in said], causes


@pytest.mark.parametrize(
    ("spec", "path", "value"),
    [
        pytest.param(job(), ("job", "ttlSecondsAfterFinished"), 3600, id="a job"),
        pytest.param(
            job(template={"spec": {"containers": [], "futureField": 1}}),
            ("job", "template", "spec", "futureField"),
            1,
            id="a field of a pod that we do not know",
        ),
        pytest.param(http(), ("http", "timeout"), "10s", id="a call"),
        pytest.param(
            http(url="http://[fd00::1]:8080/a?b=c&d=%20", successCodes=[202, 409]),
            ("http", "successCodes"),
            [202, 409],
            id="its codes",
        ),
        pytest.param(http(prefix="site/images/"), ("http", "prefix"), "site/images/", id="a prefix"),
        pytest.param(
            other_queue("123456789012", "q.fifo"),
            ("sqs", "queueURL"),
            "https://sqs.eu-west-1.amazonaws.com/123456789012/q.fifo",
            id="a FIFO queue",
        ),
        pytest.param(cloudfront(), ("cloudFront", "scope"), "Keys", id="an invalidation"),
        pytest.param(cloudfront(), ("cloudFront", "maxPaths"), 15, id="its paths"),
        pytest.param(job(prefix=""), ("job", "prefix"), "", id="no prefix"),
        pytest.param(
            {**http(), "debounce": {"minInterval": "0s", "quietPeriod": "0s"}},
            ("http", "url"),
            URL,
            id="an interval that a gateway could not have",
        ),
    ],
)
def test_accepted(refreshes: Objects, spec: Spec, path: tuple[str, ...], value: Any) -> None:
    found: Any = refreshes.create(spec)["spec"]["target"]
    for name in path:
        found = found[name]
    assert found == value


def test_a_name_that_is_no_label_is_refused_where_it_becomes_one(refreshes: Objects) -> None:
    _, _, causes = refreshes.refusal(job(), name="x" * 64)
    assert [at for at, said in causes if "at most 63 characters" in said] == ["metadata.name"]
    refreshes.create(job(), name="x" * 63)
    refreshes.create(http(), name="x" * 64)
