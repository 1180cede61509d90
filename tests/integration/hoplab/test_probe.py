"""The probe as a process in the lab's namespaces: each row of the table of observations, for real."""

import contextlib
import http.client
import http.server
import ipaddress
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from caretaker_probe import __main__ as program
from caretaker_probe.observe import INSTANCE_ID_PATH, TOKEN_PATH
from hoplab.imds import SERVER
from hoplab.lab import INSTANCE_ID, PORT, HopLab
from hoplab.network import DIND, IMDS, IMDS_IPV4, IMDS_IPV6, NODE, PLACES, POD
from hoplab.options import MetadataOptions
from testbed.paths import CHECKOUT

NEEDS = {NODE: 1, POD: 2, DIND: 3}
# As a Pod without any right: no capability, and no way to get one.
BARE = ("setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs", "--")
ANSWER_SECONDS = 30


@pytest.fixture(scope="module")
def running() -> Iterator[HopLab]:
    with HopLab() as lab:
        yield lab


@pytest.fixture
def lab(running: HopLab) -> HopLab:
    running.setting.options = MetadataOptions()
    running.imds.server_name = SERVER
    running.imds.requests.clear()
    return running


class Started:
    """A probe at work."""

    def __init__(self, lab: HopLab, place: str, *arguments: str, **environment: str) -> None:
        command = [*BARE, sys.executable, "-m", "caretaker_probe", *arguments]
        given = {"PATH": os.environ["PATH"], "PYTHONPATH": str(CHECKOUT / "operator"), **environment}
        self._process = lab.start(place, command, given)

    def found(self) -> dict[str, Any]:
        out, err = self._process.communicate(timeout=ANSWER_SECONDS)
        assert self._process.returncode == 0, err
        found: dict[str, Any] = json.loads(out)
        return found


def probe(lab: HopLab, place: str = POD, *arguments: str, **environment: str) -> dict[str, Any]:
    return Started(lab, place, *arguments, **environment).found()


@contextlib.contextmanager
def listening(lab: HopLab, port: int) -> Iterator[None]:
    """Somebody at the service's address who takes connections and says nothing."""
    with lab.new_socket(IMDS) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((IMDS_IPV4, port))
        listener.listen()
        yield


@contextlib.contextmanager
def dropped(lab: HopLab, service: str) -> Iterator[None]:
    """The node drops the service's answers to the pod without a word, as a network policy does."""
    version = ipaddress.ip_address(service).version
    with lab.new_socket(POD, socket.AF_INET if version == 4 else socket.AF_INET6) as ours:
        ours.connect((service, PORT))
        destination = ours.getsockname()[0]

    def route(verb: str) -> None:
        family = f"-{version}"
        command = ["ip", family, "route", verb, "blackhole", destination]
        done = lab.start(NODE, command, {"PATH": os.environ["PATH"]})
        assert done.wait(10) == 0, done.communicate()

    route("add")
    try:
        yield
    finally:
        route("del")


MODES = {"IPv4": IMDS_IPV4, "IPv6": IMDS_IPV6}


# Over IPv6 the scan waits at every TTL that is too small: one limit, at which some places are reached.
@pytest.mark.parametrize(("mode", "limits"), [("IPv4", (1, 2, 3)), ("IPv6", (2,))])
def test_each_place_under_each_hop_limit(lab: HopLab, mode: str, limits: tuple[int, ...]) -> None:
    for hops in limits:
        lab.setting.options = MetadataOptions(hops)
        at_work = {place: Started(lab, place, "--mode", mode) for place in PLACES}
        for place, started in at_work.items():
            found = started.found()
            enough = hops >= NEEDS[place]
            assert found["verdict"] == ("Reachable" if enough else "HopLimited"), (place, hops)
            assert found["neededHops"] == NEEDS[place]
            assert found["imdsv1"] == "Closed"
            assert found["instanceId"] == (INSTANCE_ID if enough else None)
            assert (found["latencyMs"] is not None) == enough
            if enough:
                assert 0 < found["latencyMs"] < 1000
            else:
                assert f"at least {NEEDS[place]}" in found["detail"]
    assert {r.path for r in lab.imds.requests} == {TOKEN_PATH, INSTANCE_ID_PATH}, "and no credentials"
    asked = [(r.method, r.token) for r in lab.imds.requests if r.place == NODE]
    assert asked == [("PUT", False), ("GET", True), ("GET", False)] * len(limits)


def test_imdsv1_is_seen_open(lab: HopLab) -> None:
    for hops, verdict in ((1, "HopLimited"), (2, "Reachable")):
        lab.setting.options = MetadataOptions(hops, http_tokens="optional")
        assert {k: probe(lab)[k] for k in ("verdict", "imdsv1")} == {"verdict": verdict, "imdsv1": "Open"}


@pytest.mark.parametrize("mode", MODES)
def test_a_connection_that_never_comes_is_blocked(lab: HopLab, mode: str) -> None:
    with dropped(lab, MODES[mode]):
        assert probe(lab, POD, "--mode", mode)["verdict"] == "Blocked"
    assert lab.imds.requests == []


def test_a_port_where_nobody_listens_refuses(lab: HopLab) -> None:
    found = probe(lab, AWS_EC2_METADATA_SERVICE_ENDPOINT=f"http://{IMDS_IPV4}:{PORT + 1}")
    assert (found["verdict"], found["neededHops"]) == ("Refused", None)


def test_a_disabled_endpoint_forbids_everything(lab: HopLab) -> None:
    lab.setting.options = MetadataOptions(2, http_endpoint="disabled")
    assert probe(lab)["verdict"] == "EndpointDisabled"


class Forwarder(http.server.BaseHTTPRequestHandler):
    """A proxy on the node: everything goes on to the service, with the header that proxies add."""

    lab: ClassVar[HopLab]

    def do_GET(self) -> None:
        self._forward()

    def do_PUT(self) -> None:
        self._forward()

    def _forward(self) -> None:
        onward = http.client.HTTPConnection(IMDS_IPV4, PORT, timeout=5)
        with self.lab.new_socket(NODE) as onward.sock:
            onward.sock.connect((IMDS_IPV4, PORT))
            headers = {**self.headers, "X-Forwarded-For": self.client_address[0]}
            onward.request(self.command, self.path, headers=headers)
            answer = onward.getresponse()
            body = answer.read()
        self.send_response_only(answer.status)
        self.send_header("Server", answer.headers["Server"])
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


def test_a_proxy_that_tells_of_itself_gets_no_token(lab: HopLab) -> None:
    lab.setting.options = MetadataOptions(2, http_tokens="optional")
    with lab.new_socket(NODE) as listener:
        listener.bind(("0.0.0.0", 0))
        listener.listen()
        port = listener.getsockname()[1]
        with lab.new_socket(POD) as ours:  # which of the node's addresses the pod sees
            ours.connect((IMDS_IPV4, PORT))
            gateway = str(ipaddress.ip_address(ours.getsockname()[0]) - 1)
        handler = type("Bound", (Forwarder,), {"lab": lab})
        server = http.server.HTTPServer(("127.0.0.1", 0), handler, bind_and_activate=False)
        server.socket.close()  # of our own namespace
        server.socket = listener
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            found = probe(lab, POD, "--endpoint", f"http://{gateway}:{port}")
        finally:
            server.shutdown()
            thread.join()
    assert (found["verdict"], found["imdsv1"], found["neededHops"]) == ("Proxied", "Open", 1)


def test_another_server_is_no_verdict_about_ec2(lab: HopLab) -> None:
    lab.setting.options = MetadataOptions(2)
    lab.imds.server_name = "emulator/1.0"
    found = probe(lab)
    assert (found["verdict"], found["imdsv1"]) == ("Emulated", None)
    assert "emulator/1.0" in found["detail"]


@pytest.mark.parametrize(
    ("expected", "verdict"), [("i-0fedcba9876543210", "Emulated"), (INSTANCE_ID, "Reachable")]
)
def test_the_instance_is_compared_where_it_is_known(lab: HopLab, expected: str, verdict: str) -> None:
    lab.setting.options = MetadataOptions(2)
    found = probe(lab, CARETAKER_PROBE_EXPECTED_INSTANCE=expected)
    assert (found["verdict"], found["instanceId"]) == (verdict, INSTANCE_ID)


def test_whoever_takes_connections_and_says_nothing_is_silent(lab: HopLab) -> None:
    with listening(lab, PORT + 2):
        assert probe(lab, POD, "--endpoint", f"http://{IMDS_IPV4}:{PORT + 2}")["verdict"] == "Silent"


def test_the_finding_goes_to_the_termination_log_that_is_there(lab: HopLab, tmp_path: Path) -> None:
    lab.setting.options = MetadataOptions(2)
    there, absent = tmp_path / "there", tmp_path / "absent"
    there.write_text("x" * 5000)
    for log in (there, absent):
        found = probe(lab, POD, "--termination-log", str(log))
        assert found["verdict"] == "Reachable"
        if log is there:
            assert json.loads(there.read_text()) == found
    assert not absent.exists()
    assert len(json.dumps({**found, "detail": ""})) < 256


@pytest.mark.parametrize("url", ["https://169.254.169.254", "169.254.169.254", "http://[::1", "http://h/x"])
def test_an_endpoint_that_cannot_be_used_is_named(url: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "caretaker_probe", "--endpoint", url, "--termination-log", "/nonexistent"],
        env={"PYTHONPATH": str(CHECKOUT / "operator")},
        capture_output=True,
        text=True,
        check=False,
        timeout=ANSWER_SECONDS,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert url in done.stderr
    assert "Traceback" not in done.stderr


def test_the_endpoint_of_the_sdks_is_the_default() -> None:
    assert [f"http://{IMDS_IPV4}", f"http://[{IMDS_IPV6}]"] == [program.IPV4, program.IPV6]
