"""examples/s3-metadata-repair.yaml: its program at work on buckets whose copies lose what S3's lose."""

import gzip
import json
import os
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import urllib3

from awsdoubles.s3copies import S3Copies
from caretaker.s3refresh.debounce import Claim
from caretaker.s3refresh.folders import Request
from caretaker.s3refresh.match import of_buckets
from caretaker.s3refresh.targets.payload import payload_of
from testbed.paths import CHECKOUT
from testing.aws import Aws
from testing.recipes import command, run, variables

NAME: Final = "s3-metadata-repair"
PLAIN: Final = b"<p>plain</p>"
ZIPPED: Final = gzip.compress(PLAIN, mtime=0)
EVERYTHING: Final = Request(("/",), recursive=True)
PAGES_OF_FIVE: Final = {"Bucket=bucket, Prefix=prefix,": "Bucket=bucket, MaxKeys=5, Prefix=prefix,"}
# Each with its Content-Encoding before and after; None: there is none.
OBJECTS: Final[dict[str, tuple[str | None, bytes, str | None]]] = {
    "says gzip and is not.html": ("gzip", PLAIN, None),
    "is gzip and does not say so.css": (None, ZIPPED, "gzip"),
    "of an upload.bin": ("aws-chunked", PLAIN, None),
    "of an upload, and gzip.js": ("aws-chunked,gzip", ZIPPED, "gzip"),
    "of an upload, and brotli.js": ("br, aws-chunked", PLAIN, "br"),
    "an archive that would be unpacked.tar.gz": ("gzip", PLAIN, None),
    "right.html": ("gzip", ZIPPED, "gzip"),
    "right, too.html": (None, PLAIN, None),
    "an archive.tar.gz": (None, ZIPPED, None),
    "an archive that is served unpacked.gz": ("gzip", ZIPPED, "gzip"),
    "what first bytes do not tell.js": ("br", PLAIN, "br"),
    "empty.html": ("gzip", b"", "gzip"),
    "ein Blatt+100%/ü?&=.html": ("gzip", PLAIN, None),
}
MENDED: Final = {key for key, (before, _, after) in OBJECTS.items() if before != after}


@pytest.fixture
def s3(aws: Aws) -> Iterator[S3Copies]:
    with S3Copies(aws.url) as copies:
        yield copies


def payload(bucket: str, request: Request = EVERYTHING, at: float = 0.0, claim: str = "c1") -> str:
    """What the operator tells the Job of a claim."""
    now = at or time.time()
    return payload_of(of_buckets([bucket])[0], Claim(claim, "me", now, request, now)).decode()


def environment(aws: Aws, s3: S3Copies, told: str, **more: str) -> dict[str, str]:
    doubles = aws.environment(aws.url)
    return {**doubles, "AWS_ENDPOINT_URL_S3": s3.url, "CARETAKER_PAYLOAD": told, "DRY_RUN": "false", **more}


def totals(printed: str) -> dict[str, int]:
    """The last line of the log."""
    found: dict[str, int] = json.loads(printed.splitlines()[-1])
    return found


def put(aws: Aws, bucket: str, key: str, body: bytes, encoding: str | None = "gzip", **more: Any) -> None:
    fields = {"ContentEncoding": encoding} if encoding else {}
    if encoding and "aws-chunked" in encoding:  # a PUT that says so is decoded on its way, a form is not
        form = {"Content-Encoding": encoding}
        post = aws.s3.generate_presigned_post(bucket, key, Fields=form, Conditions=[form])
        sent = urllib3.request("POST", post["url"], fields={**post["fields"], "file": (key, body)})
        assert sent.status == 204, sent.data
        return
    aws.s3.put_object(Bucket=bucket, Key=key, Body=body, **fields, **more)


def encodings(aws: Aws, bucket: str) -> dict[str, str | None]:
    return {
        key: aws.s3.head_object(Bucket=bucket, Key=key).get("ContentEncoding") for key in keys(aws, bucket)
    }


def keys(aws: Aws, bucket: str) -> list[str]:
    return [one["Key"] for one in aws.s3.list_objects_v2(Bucket=bucket).get("Contents", ())]


def body(aws: Aws, bucket: str, key: str) -> bytes:
    found: bytes = aws.s3.get_object(Bucket=bucket, Key=key)["Body"].read()
    return found


def copied(s3: S3Copies) -> Counter[str]:
    return Counter(copy.key for copy in s3.copies if copy.status == 200)


def test_what_is_wrong_is_mended_and_all_else_is_not_touched(aws: Aws, s3: S3Copies, tmp_path: Path) -> None:
    bucket = aws.bucket()
    for key, (before, content, _) in OBJECTS.items():
        put(aws, bucket, key, content, before)
    code, _, printed = run(NAME, tmp_path, environment(aws, s3, payload(bucket)))
    assert code == 0, printed
    assert encodings(aws, bucket) == {key: after for key, (_, _, after) in OBJECTS.items()}
    assert {key: body(aws, bucket, key) for key in OBJECTS} == {k: o[1] for k, o in OBJECTS.items()}
    assert copied(s3) == Counter(MENDED)
    assert totals(printed) == {
        "repaired": len(MENDED),
        "right": len(OBJECTS) - len(MENDED) - 1,
        "not looked at": 1,
    }
    # Once more: nothing is left to do.
    code, _, printed = run(NAME, tmp_path, environment(aws, s3, payload(bucket, claim="c2")))
    assert (code, totals(printed)) == (0, {"right": len(OBJECTS) - 1, "not looked at": 1})
    assert copied(s3) == Counter(MENDED)


def test_at_first_it_only_tells(aws: Aws, s3: S3Copies, tmp_path: Path) -> None:
    """DRY_RUN is on in the manifest."""
    bucket = aws.bucket()
    put(aws, bucket, "a.html", PLAIN)
    as_it_stands = {"DRY_RUN": variables(NAME)["DRY_RUN"]}
    code, _, printed = run(NAME, tmp_path, environment(aws, s3, payload(bucket), **as_it_stands))
    assert code == 0
    assert json.loads(printed.splitlines()[0]) == {"key": "a.html", "was": "gzip", "is": "", "dryRun": True}
    assert totals(printed) == {"wrong": 1}
    assert encodings(aws, bucket) == {"a.html": "gzip"}
    assert {method for method, _, _ in s3.requests} == {"GET"}


# What a copy with MetadataDirective REPLACE, or any copy, does not take along by itself.
LOST: Final[dict[str, Any]] = {
    "ContentType": "text/html; charset=utf-8",
    "CacheControl": "public, max-age=31536000, immutable",
    "ContentDisposition": 'inline; filename="a.html"',
    "ContentLanguage": "de-CH",
    "Expires": "Thu, 01 Dec 2033 16:00:00 GMT",
    "Metadata": {"origin": "build-4711", "mtime": "1700000000.5", "title": "=?UTF-8?Q?gr=C3=BCn?="},
    "WebsiteRedirectLocation": "/b.html",
    "StorageClass": "STANDARD_IA",
    "ServerSideEncryption": "aws:kms",
    "SSEKMSKeyId": "arn:aws:kms:eu-west-1:000000000000:key/11111111-2222-3333-4444-555555555555",
    "Tagging": "team=web&stage=a%20b",
}


def seen(aws: Aws, bucket: str, key: str) -> dict[str, Any]:
    """All that S3 tells of an object but when it was written and its encoding."""
    head = aws.s3.head_object(Bucket=bucket, Key=key)
    own = {"ResponseMetadata", "LastModified", "ContentEncoding", "VersionId"}
    tags = aws.s3.get_object_tagging(Bucket=bucket, Key=key)["TagSet"]
    acl = aws.s3.get_object_acl(Bucket=bucket, Key=key)["Grants"]
    told = {name: value for name, value in head.items() if name not in own}
    return {
        **told,
        "tags": sorted(tags, key=str),
        "acl": sorted(acl, key=str),
        "body": body(aws, bucket, key),
    }


def with_acls(aws: Aws) -> str:
    bucket = aws.bucket()
    rule = {"Rules": [{"ObjectOwnership": "ObjectWriter"}]}
    aws.s3.put_bucket_ownership_controls(Bucket=bucket, OwnershipControls=rule)
    return bucket


@pytest.mark.parametrize("content", [PLAIN, os.urandom(1) * 11 * 2**20], ids=["in one", "in parts"])
def test_all_that_an_object_has_beside_stays(aws: Aws, s3: S3Copies, tmp_path: Path, content: bytes) -> None:
    """A copy in parts, of objects above 5 GiB in the manifest, here above 1 MiB."""
    bucket = with_acls(aws)
    put(aws, bucket, "a.html", content, **LOST)
    owner = aws.s3.get_object_acl(Bucket=bucket, Key="a.html")["Owner"]["ID"]
    everyone, other = "http://acs.amazonaws.com/groups/global/AllUsers", "ab" * 32
    readers = {"GrantRead": f'uri="{everyone}", id="{other}"', "GrantFullControl": f'id="{owner}"'}
    aws.s3.put_object_acl(Bucket=bucket, Key="a.html", **readers)
    before = seen(aws, bucket, "a.html")
    assert before["StorageClass"] == LOST["StorageClass"]
    assert before["SSEKMSKeyId"] == LOST["SSEKMSKeyId"]
    assert before["WebsiteRedirectLocation"] == "/b.html"
    assert (len(before["acl"]), len(before["tags"])) == (3, 2)
    sizes = {"LARGEST_COPY = 5 * 2**30": "LARGEST_COPY = 2**20", "PART = 2**30": "PART = 5 * 2**20"}
    code, _, printed = run(NAME, tmp_path, environment(aws, s3, payload(bucket)), sizes)
    assert (code, totals(printed)) == (0, {"repaired": 1}), printed
    after = seen(aws, bucket, "a.html")
    in_parts = len(content) > 2**20
    if in_parts:  # whose ETag is made of those of its parts
        assert after.pop("ETag").endswith('-3"')
        del before["ETag"]
    assert after == before
    assert encodings(aws, bucket) == {"a.html": None}
    assert aws.s3.list_multipart_uploads(Bucket=bucket).get("Uploads", []) == []


def test_retention_is_sent_with_the_copy_while_it_lasts(aws: Aws, s3: S3Copies, tmp_path: Path) -> None:
    bucket = aws.bucket()
    aws.s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    on = {"ObjectLockEnabled": "Enabled"}
    aws.s3.put_object_lock_configuration(Bucket=bucket, ObjectLockConfiguration=on)
    until = "2040-01-02T03:04:05Z"
    lock = {"ObjectLockMode": "GOVERNANCE", "ObjectLockRetainUntilDate": until}
    put(aws, bucket, "a.html", PLAIN, **lock, ObjectLockLegalHoldStatus="ON")
    code, _, printed = run(NAME, tmp_path, environment(aws, s3, payload(bucket)))
    assert code == 0, printed
    (copy,) = s3.copies
    assert copy.headers["x-amz-object-lock-mode"] == "GOVERNANCE"
    assert copy.headers["x-amz-object-lock-retain-until-date"].startswith("2040-01-02T03:04:05")
    assert copy.headers["x-amz-object-lock-legal-hold"] == "ON"


@pytest.mark.parametrize("size", [len(PLAIN), 11 * 2**20], ids=["in one", "in parts"])
def test_a_newer_upload_is_never_overwritten(aws: Aws, s3: S3Copies, tmp_path: Path, size: int) -> None:
    """It comes after the source was read, and before the copy is written."""
    bucket = aws.bucket()
    put(aws, bucket, "a.html", b"x" * size)
    s3.between = lambda key: put(aws, bucket, key, ZIPPED, "gzip", Metadata={"newer": "yes"})
    sizes = {"LARGEST_COPY = 5 * 2**30": "LARGEST_COPY = 2**20", "PART = 2**30": "PART = 5 * 2**20"}
    code, _, printed = run(NAME, tmp_path, environment(aws, s3, payload(bucket)), sizes)
    assert (code, totals(printed)) == (0, {"changed meanwhile": 1})
    assert [copy.status for copy in s3.copies] == [412]
    head = aws.s3.head_object(Bucket=bucket, Key="a.html")
    assert (head["Metadata"], head["ContentEncoding"]) == ({"newer": "yes"}, "gzip")
    assert body(aws, bucket, "a.html") == ZIPPED
    assert aws.s3.list_multipart_uploads(Bucket=bucket).get("Uploads", []) == []


def test_an_object_that_is_deleted_meanwhile_does_not_come_back(
    aws: Aws, s3: S3Copies, tmp_path: Path
) -> None:
    bucket = aws.bucket()
    put(aws, bucket, "a.html", PLAIN)
    s3.between = lambda key: aws.s3.delete_object(Bucket=bucket, Key=key)
    code, _, printed = run(NAME, tmp_path, environment(aws, s3, payload(bucket)))
    assert (code, totals(printed)) == (0, {"changed meanwhile": 1})
    assert keys(aws, bucket) == []


def many(aws: Aws, count: int = 33) -> str:
    bucket = aws.bucket()
    for number in range(count):
        put(aws, bucket, f"{number:03d}.html", PLAIN, Metadata={"number": str(number)})
    return bucket


def all_mended(aws: Aws, bucket: str, count: int = 33) -> bool:
    heads = [aws.s3.head_object(Bucket=bucket, Key=f"{number:03d}.html") for number in range(count)]
    return all(
        "ContentEncoding" not in head and head["Metadata"] == {"number": str(number)}
        for number, head in enumerate(heads)
    )


def looked_at(s3: S3Copies) -> set[str]:
    return {
        key for method, key, query in s3.requests if method == "GET" and key.endswith(".html") and not query
    }


def test_killed_in_the_middle_it_goes_on_from_there(aws: Aws, s3: S3Copies, tmp_path: Path) -> None:
    bucket = many(aws)
    env = {"PATH": os.environ["PATH"], **variables(NAME), **environment(aws, s3, payload(bucket))}
    with subprocess.Popen(
        command(NAME, tmp_path, PAGES_OF_FIVE), env=env, stdout=subprocess.DEVNULL
    ) as process:
        s3.between = lambda _: process.kill() if len(s3.copies) == 17 else None
        assert process.wait(60) == -9
    state = f"{variables(NAME)['STATE_PREFIX']}c1"
    assert json.loads(body(aws, bucket, state)) == {"folder": 0, "after": "014.html"}
    s3.between = lambda _: None
    s3.requests.clear()
    code, _, printed = run(NAME, tmp_path, environment(aws, s3, payload(bucket)), PAGES_OF_FIVE)
    assert code == 0, printed
    assert looked_at(s3) == {f"{number:03d}.html" for number in range(15, 33)}
    assert max(copied(s3).values()) == 1, "what was copied is not copied again"
    assert all_mended(aws, bucket)
    assert state not in keys(aws, bucket), "how far it has come is forgotten at the end"


def test_two_at_once_do_each_others_work_and_no_harm(aws: Aws, s3: S3Copies, tmp_path: Path) -> None:
    bucket = many(aws)
    env = {"PATH": os.environ["PATH"], **variables(NAME), **environment(aws, s3, payload(bucket))}
    line = command(NAME, tmp_path, PAGES_OF_FIVE)
    both = [subprocess.Popen(line, env=env, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    printed = [one.communicate(timeout=60)[0] for one in both]
    assert [one.returncode for one in both] == [0, 0], printed
    assert all_mended(aws, bucket)
    assert len(keys(aws, bucket)) == 33, "what each kept of its place is gone"


def test_what_fails_is_told_and_tried_again_and_holds_up_nothing_else(
    aws: Aws, s3: S3Copies, tmp_path: Path
) -> None:
    bucket = many(aws, 12)
    s3.denied = {"003.html"}
    code, _, printed = run(NAME, tmp_path, environment(aws, s3, payload(bucket)), PAGES_OF_FIVE)
    assert code == 1
    assert "'003.html': An error occurred (AccessDenied)" in printed
    assert json.loads(next(line for line in printed.splitlines() if '"failed"' in line))["repaired"] == 11
    s3.denied = set()
    code, _, printed = run(NAME, tmp_path, environment(aws, s3, payload(bucket)), PAGES_OF_FIVE)
    assert (code, totals(printed)) == (0, {"right": 11, "repaired": 1})
    assert all_mended(aws, bucket, 12)


def test_only_the_folders_that_changed_are_looked_at(aws: Aws, s3: S3Copies, tmp_path: Path) -> None:
    bucket = aws.bucket()
    every = ["a/1.html", "a/b/2.html", "a/b/c/3.html", "d/4.html", "5.html"]
    for key in every:
        put(aws, bucket, key, PLAIN)
    told = payload(bucket, Request(("a/b", "a", "/"), recursive=False))
    assert run(NAME, tmp_path, environment(aws, s3, told))[0] == 0
    assert set(copied(s3)) == {"a/1.html", "a/b/2.html", "5.html"}
    told = payload(bucket, Request(("a",), recursive=True), claim="c2")
    assert run(NAME, tmp_path, environment(aws, s3, told))[0] == 0
    assert set(copied(s3)) == {*every} - {"d/4.html"}


def test_what_is_older_than_any_event_can_be_was_looked_at_before(
    aws: Aws, s3: S3Copies, tmp_path: Path
) -> None:
    bucket = aws.bucket()
    put(aws, bucket, "a.html", PLAIN)
    hours = float(variables(NAME)["LOOK_BACK_HOURS"])
    later = payload(bucket, Request(("/",), recursive=False), at=time.time() + (hours + 1) * 3600)
    code, _, printed = run(NAME, tmp_path, environment(aws, s3, later))
    assert (code, totals(printed)) == (0, {"not looked at": 1})
    sooner = payload(bucket, Request(("/",), recursive=False), at=time.time() + (hours - 1) * 3600)
    code, _, printed = run(NAME, tmp_path, environment(aws, s3, sooner))
    assert (code, totals(printed)) == (0, {"repaired": 1})


def test_what_cannot_be_copied_as_it_is_is_left(aws: Aws, s3: S3Copies, tmp_path: Path) -> None:
    bucket = aws.bucket()
    key = {"SSECustomerAlgorithm": "AES256", "SSECustomerKey": "k" * 32}
    put(aws, bucket, "key of the uploader.html", PLAIN, **key)
    put(aws, bucket, "archived.html", PLAIN, StorageClass="DEEP_ARCHIVE")
    never = {"Expires": "never"}  # which boto3 itself would not send
    aws.s3.meta.events.register(
        "before-call.s3.PutObject", lambda params, **_: params["headers"].update(never)
    )
    put(aws, bucket, "no date.html", PLAIN)
    code, _, printed = run(NAME, tmp_path, environment(aws, s3, payload(bucket)))
    assert (code, totals(printed)) == (0, {"in doubt": 2, "not looked at": 1}), printed
    assert s3.copies == []


# (method, what the query names) -> the action that a policy has to allow.
ACTIONS: Final[Mapping[tuple[str, str], str]] = {
    ("DELETE", ""): "s3:DeleteObject",
    ("DELETE", "uploadId"): "s3:AbortMultipartUpload",
    ("GET", ""): "s3:GetObject",
    ("GET", "acl"): "s3:GetObjectAcl",
    ("GET", "list-type"): "s3:ListBucket",
    ("GET", "tagging"): "s3:GetObjectTagging",
    ("POST", "uploadId"): "s3:PutObject",
    ("POST", "uploads"): "s3:PutObject",
    ("PUT", ""): "s3:PutObject",
    ("PUT", "partNumber"): "s3:PutObject",
}


def used(s3: S3Copies) -> set[str]:
    """The actions of all requests, and those that headers of a copy ask for besides."""
    found = set()
    for method, _, query in s3.requests:
        named = [name for verb, name in ACTIONS if verb == method and name in query]
        found.add(ACTIONS[method, named[0] if named else ""])
    sent = {name for copy in s3.copies for name in copy.headers}
    found |= {"s3:PutObjectAcl"} if any(name.startswith("x-amz-grant-") for name in sent) else set()
    return found | ({"s3:PutObjectTagging"} if "x-amz-tagging-directive" in sent else set())


def test_the_policy_on_the_page_allows_what_it_does_and_no_more(
    aws: Aws, s3: S3Copies, tmp_path: Path
) -> None:
    page = (CHECKOUT / "docs" / "recipes.md").read_text()
    policy = json.loads(page.partition("```json\n")[2].partition("```")[0])
    actions = [statement["Action"] for statement in policy["Statement"]]
    allowed = {one for named in actions for one in ([named] if isinstance(named, str) else named)}
    bucket = with_acls(aws)
    for number in range(8):
        put(aws, bucket, f"{number:03d}.html", PLAIN, ACL="public-read")
    put(aws, bucket, "large.html", b"x" * 6 * 2**20)
    sizes = {"LARGEST_COPY = 5 * 2**30": "LARGEST_COPY = 2**20", "PART = 2**30": "PART = 5 * 2**20"}
    s3.between = lambda key: put(aws, bucket, key, ZIPPED) if key == "large.html" else None
    code, _, printed = run(NAME, tmp_path, environment(aws, s3, payload(bucket)), PAGES_OF_FIVE | sizes)
    assert code == 0, printed
    assert used(s3) == allowed
    deleted = {key for method, key, query in s3.requests if method == "DELETE" and not query & {"uploadId"}}
    own = policy["Statement"][2]["Resource"].partition("/")[2].removesuffix("*")
    assert own == variables(NAME)["STATE_PREFIX"]
    assert all(key.startswith(own) for key in deleted)
