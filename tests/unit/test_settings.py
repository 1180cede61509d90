"""Settings: what wins, what is refused, and in which words."""

import argparse
from pathlib import Path

import pytest

from caretaker.api.grants import Grant, Grants
from caretaker.registry import DAEMON_TASK, IMDS_POLICY, KINDS, S3_AGGREGATED_REFRESH
from caretaker.settings import Settings, SettingsError, add_connection_arguments, add_run_arguments, load

NOWHERE = Path("/nonexistent/namespace")
PLURALS = ", ".join(info.plural for info in KINDS)


def settings(args: str = "", namespace_file: Path = NOWHERE, **env: str) -> Settings:
    """Settings of `caretaker run ARGS` in that environment."""
    parser = argparse.ArgumentParser()
    add_run_arguments(parser)
    return load(parser.parse_args(args.split()), env, namespace_file)


def test_without_anything_the_defaults_hold() -> None:
    found = settings()
    assert (found.kubeconfig, found.context, found.namespace) == (None, None, None)
    assert (found.operator_namespace, found.lease_name) == ("caretaker-system", "caretaker")
    assert (found.metrics_port, found.health_port, found.bind_host) == (8080, 8081, "")
    assert (found.log_format, found.log_level) == ("json", "INFO")
    assert found.leader_elect
    assert found.kinds == KINDS
    assert found.aws_grants == Grants.default("caretaker-system")
    assert not found.aws_instance_identity
    assert found.egress_allow == ()


def test_flags_fill_every_field(tmp_path: Path) -> None:
    kubeconfig = tmp_path / "k"
    kubeconfig.touch()
    identities = tmp_path / "identities.yaml"
    identities.write_text("identities: [{namespaces: [team-a], ownIdentity: true}]")
    found = settings(
        f"--kubeconfig {kubeconfig} --context c --namespace ns --operator-namespace ons --lease-name l.x "
        "--metrics-port 0 --health-port 65535 --bind-host :: --log-format text --log-level debug "
        f"--no-leader-elect --aws-identities {identities} --aws-instance-identity "
        "--egress-allow 10.0.0.0/8,fd00::1,hooks.example.com,http://a.b --kinds imdspolicies,daemontasks"
    )
    assert (found.kubeconfig, found.context, found.namespace) == (str(kubeconfig), "c", "ns")
    assert (found.operator_namespace, found.lease_name) == ("ons", "l.x")
    assert (found.metrics_port, found.health_port, found.bind_host) == (0, 65535, "::")
    assert (found.log_format, found.log_level, found.leader_elect) == ("text", "DEBUG", False)
    assert found.aws_grants == Grants((Grant(("team-a",), own_identity=True),))
    assert found.aws_instance_identity
    assert found.egress_allow == ("10.0.0.0/8", "fd00::1", "hooks.example.com", "http://a.b")
    assert found.kinds == (DAEMON_TASK, IMDS_POLICY)


def test_the_environment_fills_every_field(tmp_path: Path) -> None:
    identities = tmp_path / "identities.json"
    identities.write_text('{"identities": []}')
    found = settings(
        CARETAKER_AWS_IDENTITIES=str(identities),
        CARETAKER_AWS_INSTANCE_IDENTITY="true",
        CARETAKER_EGRESS_ALLOW=" localhost , 127.0.0.1,",
        KUBECONFIG="/a:/b",
        CARETAKER_CONTEXT="c",
        CARETAKER_NAMESPACE="ns",
        CARETAKER_KINDS="s3aggregatedrefreshes, ",
        CARETAKER_LEASE_NAME="l",
        CARETAKER_METRICS_PORT="1",
        CARETAKER_HEALTH_PORT="2",
        CARETAKER_BIND_HOST="127.0.0.1",
        CARETAKER_LEADER_ELECT="false",
        CARETAKER_LOG_FORMAT="text",
        CARETAKER_LOG_LEVEL="warning",
        POD_NAMESPACE="ons",
        POD_NAME="pod-1",
    )
    assert found == Settings(
        kubeconfig="/a:/b",
        context="c",
        namespace="ns",
        kinds=(S3_AGGREGATED_REFRESH,),
        operator_namespace="ons",
        lease_name="l",
        identity="pod-1",
        leader_elect=False,
        metrics_port=1,
        health_port=2,
        bind_host="127.0.0.1",
        log_format="text",
        log_level="WARNING",
        aws_identities=Grants(()),
        aws_instance_identity=True,
        egress_allow=("localhost", "127.0.0.1"),
    )


def test_a_flag_wins_over_the_environment() -> None:
    found = settings(
        "--metrics-port 1 --leader-elect", CARETAKER_METRICS_PORT="2", CARETAKER_LEADER_ELECT="0"
    )
    assert (found.metrics_port, found.leader_elect) == (1, True)


def test_an_empty_value_counts_as_not_given() -> None:
    found = settings(CARETAKER_NAMESPACE="", CARETAKER_METRICS_PORT="", KUBECONFIG="", POD_NAME="")
    assert (found.namespace, found.metrics_port, found.kubeconfig) == (None, 8080, None)
    assert found.identity


def test_keyword_arguments_do_without_a_parser() -> None:
    assert load({"metrics_port": 0, "leader_elect": False}, {}).metrics_port == 0


def test_two_processes_without_a_pod_have_two_identities() -> None:
    assert settings().identity != settings().identity


def test_in_a_pod_the_lease_lives_in_the_pods_namespace(tmp_path: Path) -> None:
    (tmp_path / "namespace").write_text("team-a\n")
    assert settings(namespace_file=tmp_path / "namespace").operator_namespace == "team-a"


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        settings().metrics_port = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("args", "env", "message"),
    [
        pytest.param(
            "", {"CARETAKER_METRICS_PORT": "http"},
            "CARETAKER_METRICS_PORT=http: must be a port from 0 to 65535; 0 takes a free one",
            id="a port in words",
        ),
        pytest.param(
            "--health-port 65536", {},
            "--health-port=65536: must be a port from 0 to 65535; 0 takes a free one",
            id="a port too high",
        ),
        pytest.param(
            "--health-port -1", {},
            "--health-port=-1: must be a port from 0 to 65535; 0 takes a free one",
            id="a port below zero",
        ),
        pytest.param(
            "", {"CARETAKER_LEADER_ELECT": "maybe"},
            "CARETAKER_LEADER_ELECT=maybe: must be true or false",
            id="a switch that is neither",
        ),
        pytest.param(
            "--log-format xml", {}, "--log-format=xml: must be one of json, text", id="an unknown log format"
        ),
        pytest.param(
            "", {"CARETAKER_LOG_LEVEL": "loud"},
            "CARETAKER_LOG_LEVEL=loud: must be one of DEBUG, INFO, WARNING, ERROR",
            id="an unknown log level",
        ),
        pytest.param(
            "--namespace Team_A", {},
            "--namespace=Team_A: must be the name of a namespace: at most 63 of a-z, 0-9 and '-'",
            id="a namespace that cannot be",
        ),
        pytest.param(
            "", {"POD_NAMESPACE": "a.b"},
            "POD_NAMESPACE=a.b: must be the name of a namespace: at most 63 of a-z, 0-9 and '-'",
            id="the Pod's namespace that cannot be",
        ),
        pytest.param(
            "--lease-name -x", {},
            "--lease-name=-x: must be the name of a Lease: at most 253 of a-z, 0-9, '-' and '.'",
            id="a Lease that cannot be",
        ),
        pytest.param(
            "--kubeconfig /nonexistent/k", {},
            "--kubeconfig=/nonexistent/k: there is no such file; give the path of a kubeconfig",
            id="a kubeconfig that is not there",
        ),
        *(
            pytest.param(
                f"--egress-allow {place}", {},
                f"--egress-allow={place}: {wrong} must be a network, an address, a host or "
                "http://HOST, such as 10.0.0.0/8",
                id=f"no place: {place}",
            )
            for place, wrong in (
                ("https://example.com", "https://example.com"),
                ("example.com:8080", "example.com:8080"),
                ("*.example.com", "*.example.com"),
                ("http://10.0.0.0/8", "http://10.0.0.0/8"),
                ("http://a.example/", "http://a.example/"),
                ("http://", "http://"),
                ("10.0.0.0/33", "10.0.0.0/33"),
                ("localhost,10.0.0.256", "10.0.0.256"),
                ("fe80::/129", "fe80::/129"),
            )
        ),
        pytest.param(
            "--kinds daemontasks,daemontask", {},
            f"--kinds=daemontasks,daemontask: 'daemontask': must be of {PLURALS}, by comma",
            id="a kind that there is not",
        ),
        pytest.param(
            "", {"CARETAKER_KINDS": ","},
            f"CARETAKER_KINDS=,: ',': must be of {PLURALS}, by comma",
            id="no kind at all",
        ),
        pytest.param(
            "", {"CARETAKER_METRIC_PORT": "1"},
            "CARETAKER_METRIC_PORT: there is no such setting; did you mean CARETAKER_METRICS_PORT?",
            id="a misspelt variable",
        ),
    ],
)  # fmt: skip
def test_a_fault_is_told_with_its_mend(args: str, env: dict[str, str], message: str) -> None:
    flag, _, value = args.partition(" ")
    with pytest.raises(SettingsError) as caught:
        settings(f"{flag}={value}" if value else "", NOWHERE, **env)
    assert str(caught.value) == message


def test_a_variable_like_no_other_is_told_which_there_are() -> None:
    with pytest.raises(SettingsError, match=r"CARETAKER_X: .*known are .*CARETAKER_CONTEXT.*; unset it"):
        settings(CARETAKER_X="1")


def test_all_faults_are_told_at_once() -> None:
    with pytest.raises(SettingsError) as caught:
        settings("--metrics-port x", CARETAKER_HEALTH_PORT="y", CARETAKER_Z="z")
    assert [line.partition(":")[0] for line in str(caught.value).splitlines()] == [
        "CARETAKER_Z",
        "--metrics-port=x",
        "CARETAKER_HEALTH_PORT=y",
    ]


def test_the_links_of_services_are_not_settings() -> None:
    """The kubelet sets them for Services in the Pod's namespace whose names begin with caretaker."""
    found = settings(
        CARETAKER_SERVICE_HOST="10.0.0.1",
        CARETAKER_SERVICE_PORT="8080",
        CARETAKER_SERVICE_PORT_METRICS="8080",
        CARETAKER_PORT="tcp://10.0.0.1:8080",
        CARETAKER_PORT_8080_TCP="tcp://10.0.0.1:8080",
        CARETAKER_PORT_8080_TCP_PROTO="tcp",
        CARETAKER_PORT_8080_TCP_PORT="8080",
        CARETAKER_PORT_8080_TCP_ADDR="10.0.0.1",
        CARETAKER_METRICS_SERVICE_HOST="10.0.0.2",
        CARETAKER_METRICS_PORT="tcp://10.0.0.2:8080",
        CARETAKER_METRICS_PORT_8080_TCP="tcp://10.0.0.2:8080",
        OTHER_PORT="x",
    )
    assert found.metrics_port == 8080


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"cannot be read \(No such file or directory\); give the path"),
        ("identities: [", "is neither YAML nor JSON: "),
        ("", "the form is `identities: "),
        ("identities: [{namespaces: [a], roleARNs: [x]}]", r"identities\[0\]\.roleARNs\[0\]: x is no ARN"),
    ],
)
def test_a_file_of_identities_that_is_wrong_is_told(
    content: str | None, message: str, tmp_path: Path
) -> None:
    file = tmp_path / "f"
    if content is not None:
        file.write_text(content)
    with pytest.raises(SettingsError, match=f"^--aws-identities={file}: .*{message}"):
        settings(f"--aws-identities {file}")


def test_a_file_that_grants_nothing_is_not_the_default(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_text("identities: []")
    assert settings(f"--aws-identities {file}").aws_grants.identities == ()


def test_commands_that_only_look_take_the_connections_flags_alone() -> None:
    parser = argparse.ArgumentParser()
    add_connection_arguments(parser)
    text = parser.format_help()
    assert "--namespace NAMESPACE" in text
    assert "--metrics-port" not in text
    assert load(parser.parse_args(["--namespace", "ns"]), {}).namespace == "ns"
