"""The command line itself: help, usage, exit codes. No command here gets as far as a connection."""

import re
from pathlib import Path

import pytest

from caretaker import __version__
from caretaker.cli import main
from caretaker.cli.common import explain, named, names_in
from caretaker.cli.plan import plan_of
from caretaker.cli.status import status_of
from caretaker.kube.errors import ApiError
from caretaker.registry import KINDS, KindInfo
from testing import manifests

ROOT = Path(__file__).resolve().parents[3]
COMMANDS = ("run", "plan", "status", "refresh", "rerun", "resume", "logs")


def told(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    """(exit code, stdout, stderr)."""
    try:
        code: object = main(argv)
    except SystemExit as end:  # argparse ends so
        code = end.code
    output = capsys.readouterr()
    assert isinstance(code, int)
    return code, output.out, output.err


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, "--version") == (0, f"caretaker {__version__}\n", "")


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = told(capsys, "--help")
    assert code == 0
    assert [name for name in COMMANDS if not re.search(rf"^    {name} ", out, re.MULTILINE)] == []
    assert "IMDS" in out


@pytest.mark.parametrize("command", COMMANDS)
def test_help_ends_with_an_example_that_can_be_parsed(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = told(capsys, command, "--help")
    example = out.partition("example:\n")[2].splitlines()
    assert code == 0
    assert example
    assert [line for line in example if f"caretaker {command} " not in line] == []


@pytest.mark.parametrize(
    "argv", ["{} status dtask/t", "status {} dtask/t", "status dtask/t {}", "status dtask {} t"]
)
@pytest.mark.parametrize("flag", ["--kubeconfig", "--log-level", "-n"])
def test_a_shared_flag_may_stand_before_the_command_or_after_it(
    argv: str, flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = told(capsys, *argv.format(f"{flag} No_Such").split())
    name = {"-n": "--namespace"}.get(flag, flag)
    assert (code, f"{name}=No_Such: " in err) == (2, True)


@pytest.mark.parametrize(
    ("argv", "short"),
    [
        pytest.param("--kube=x run", "--kube=x", id="before the command"),
        pytest.param("run --lease=other", "--lease=other", id="a flag of run"),
        pytest.param("run --no-leader", "--no-leader", id="a switch that is turned off"),
        pytest.param("logs dtask/x --failed --tai=1", "--tai=1", id="a flag of another command"),
    ],
)
def test_a_flag_is_known_by_its_full_name_alone(
    argv: str, short: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = told(capsys, *argv.split())
    command = f"caretaker {next(word for word in argv.split() if word in COMMANDS)}"
    assert (code, err) == (2, f"{command}: unrecognized arguments: {short}; see {command} --help\n")


def test_of_a_flag_that_stands_twice_the_last_counts(capsys: pytest.CaptureFixture[str]) -> None:
    _, _, err = told(capsys, "--kubeconfig", "first", "status", "--kubeconfig", "second", "dtask/t")
    assert ("first" in err, "--kubeconfig=second" in err) == (False, True)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        pytest.param(
            "", "the following arguments are required: COMMAND; see caretaker --help", id="no command"
        ),
        pytest.param("frobnicate", "invalid choice: 'frobnicate'", id="an unknown command"),
        pytest.param("plan", "required: -f/--filename; see caretaker plan --help", id="plan without a file"),
        pytest.param("plan -f - -f -", "stdin can be read once", id="stdin twice"),
        pytest.param(
            f"plan -f {ROOT}/examples/hello.yaml --sample s3://bucket/a",
            "there is none in the files",
            id="a sample without a refresh",
        ),
        pytest.param("status", "required: KIND NAME; see caretaker status --help", id="nothing named"),
        pytest.param(
            "status daemontask", "which one? write: daemontask NAME, instead", id="a kind without a name"
        ),
        pytest.param(
            "status daemontask/", "which one? write: daemontask NAME, instead", id="a kind and an empty name"
        ),
        pytest.param(
            "status a",
            f"which one? write: {' or '.join(f'{info.kind.lower()} NAME' for info in KINDS)}, instead of a",
            id="a word",
        ),
        pytest.param("status dtask a b", "one at a time, and nodes joined by", id="three words"),
        pytest.param("status dtask/a dtask/b", "instead of dtask/a dtask/b", id="two resources"),
        pytest.param("status dtask -n a b c", "instead of dtask b c", id="words apart"),
        pytest.param(
            "rerun dtask x --nodes a b", "nodes joined by commas, instead of dtask x b", id="nodes apart"
        ),
        pytest.param("status dtask -n a b --no", "unrecognized arguments: b --no", id="an unknown flag"),
        pytest.param("plan -f x y", "unrecognized arguments: y", id="a word that plan has no use for"),
        pytest.param(
            "status pod/x",
            "pod: there is no such kind here; write: daemontask x or s3aggregatedrefresh x",
            id="another kind",
        ),
        pytest.param(
            "rerun s3ar/x",
            "s3ar: this is about DaemonTasks alone",
            id="a kind that the command is not for",
        ),
        pytest.param("refresh dtask/x", "dtask: this is about S3AggregatedRefreshes alone", id="no refresh"),
        pytest.param("resume s3ar/x", "about DaemonTasks and IMDSPolicies alone", id="nothing to resume"),
        pytest.param(
            "refresh s3ar/x --folder a//b",
            "argument --folder: 'a//b' has the part '', below which a gateway shows nothing",
            id="a folder with an empty part",
        ),
        pytest.param(
            "refresh s3ar/x --folder s3:///b", "names no bucket: write s3://BUCKET/FOLDER", id="no bucket"
        ),
        pytest.param("rerun", "required: daemontask NAME; see caretaker rerun --help", id="no task"),
        pytest.param("status dtask/x -o yaml", "invalid choice: 'yaml'", id="an unknown output"),
        pytest.param(
            "rerun dtask/x --nodes ,", "has no node names; write --nodes node-a,node-b", id="no node names"
        ),
        pytest.param("rerun dtask/x --nodes a --failed", "not allowed with argument", id="nodes and failed"),
        pytest.param("logs dtask/x", "--failed --nodes is required", id="logs of what"),
        pytest.param("logs dtask/x --failed --tail -1", "argument --tail", id="a tail below nothing"),
        pytest.param("logs dtask/x --failed --tail x", "x is no number of lines", id="a tail of words"),
        pytest.param("status dtask/x --kubeconfig /no/such", "there is no such file", id="no kubeconfig"),
        pytest.param("status dtask/x -n No_Name", "must be the name of a namespace", id="a bad namespace"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(
    argv: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = told(capsys, *argv.split())
    assert (code, out) == (2, "")
    assert words in err
    assert err.startswith("caretaker")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (["daemontask", "x"], "DaemonTask"),
        (["daemontask/x"], "DaemonTask"),
        (["dtask/x"], "DaemonTask"),
        (["DaemonTask", "x"], "DaemonTask"),
        (["daemontasks.caretaker.dev/x"], "DaemonTask"),
        (["s3aggregatedrefresh", "x"], "S3AggregatedRefresh"),
        (["S3AggregatedRefreshes/x"], "S3AggregatedRefresh"),
        (["S3AR/x"], "S3AggregatedRefresh"),
        (["s3aggregatedrefreshes.caretaker.dev", "x"], "S3AggregatedRefresh"),
    ],
)
def test_a_resource_is_named_as_kubectl_does(words: list[str], kind: str) -> None:
    found, name = named(words, KINDS)
    assert (found.kind, name) == (kind, "x")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
def test_every_kind_is_shown_and_named_as_in_its_crd(kind: KindInfo) -> None:
    crd = manifests.load((ROOT / "crds" / f"{kind.plural}.yaml").read_text())
    assert crd["spec"]["names"]["shortNames"] == [kind.short]
    assert callable(plan_of(kind))
    assert callable(status_of(kind))
    assert [other for other in KINDS if other.plan_key == kind.plan_key] == [kind]


def test_nodes_are_named_once() -> None:
    assert names_in("b, a,b,") == ["b", "a"]


TASKS = "/apis/caretaker.dev/v1alpha1/namespaces/default/daemontasks/x"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        pytest.param(
            ApiError(0, "Timeout", "no answer in 30 s"),
            "is it up, and are --kubeconfig and --context",
            id="no answer",
        ),
        pytest.param(
            ApiError(401, "Unauthorized", "Unauthorized"),
            "renew those of the kubeconfig",
            id="bad credentials",
        ),
        pytest.param(
            ApiError(403, "Forbidden", 'User "u" cannot get resource "pods"'),
            "ask for a role",
            id="a verb is missing",
        ),
        pytest.param(
            ApiError(403, "Forbidden", "exceeded quota: q"), "satisfy the quota or policy", id="a quota"
        ),
        pytest.param(
            ApiError(404, "", "404 page not found\n", path=TASKS),
            "does not know DaemonTask: install the CRDs of this version: crds.yaml of its release",
            id="no CRD",
        ),
        pytest.param(
            ApiError(
                404, "", "404 page not found\n", path=TASKS.replace("daemontasks", "s3aggregatedrefreshes")
            ),
            "does not know S3AggregatedRefresh: install the CRDs of this version: crds.yaml of its release",
            id="no CRD of the other kind",
        ),
        pytest.param(
            ApiError(500, "InternalError", "a\nb", verb="get", path="/x"),
            "a b (500 InternalError, get /x)",
            id="any other",
        ),
    ],
)
def test_what_the_api_server_refuses_is_one_line_with_a_mend(error: ApiError, words: str) -> None:
    line = explain(error, "https://host")
    assert words in line
    assert "\n" not in line
