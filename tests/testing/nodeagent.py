"""A program of a host as rotate-certificate expects it: it serves TLS from one file, read again at SIGHUP.

Started as a process: `python -P nodeagent.py FILE NAME [deaf]` prints its port. Its name in /proc/PID/comm is
NAME; a deaf one takes the signal and goes on as before. The certificates for it are made here, too.
"""

import datetime
import signal
import socket
import ssl
import sys
import threading
from pathlib import Path
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

SERVER_NAME: Final = "node-agent.example.com"


class Authority(NamedTuple):
    """One that signs: its certificate as PEM, and what it takes to sign."""

    pem: bytes
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def authority() -> Authority:
    """A new one."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "node-agent-ca")])
    now = datetime.datetime.now(datetime.UTC)
    usage = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=400))
        .not_valid_after(now + datetime.timedelta(days=400))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return Authority(made.public_bytes(serialization.Encoding.PEM), made, key)


def issue(by: Authority, days: float = 90, name: str = SERVER_NAME) -> tuple[bytes, bytes]:
    """(certificate, key) as PEM, valid for so many days from now on; negative: it has expired."""
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([]))
        .issuer_name(by.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=100))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=True)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(by.key.public_key()),
            critical=False,
        )
        .sign(by.key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return made.public_bytes(serialization.Encoding.PEM), private


def serve(file: str, name: str, *, deaf: bool) -> None:
    """Serve until the process is ended."""
    Path("/proc/self/comm").write_text(name)
    contexts: list[ssl.SSLContext] = []

    def load(*_: object) -> None:
        if deaf and contexts:
            return
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(file)
        contexts.append(context)

    load()
    signal.signal(signal.SIGHUP, load)
    listener = socket.create_server(("127.0.0.1", 0))

    def answer(plain: socket.socket) -> None:
        try:
            with contexts[-1].wrap_socket(plain, server_side=True) as secure:
                secure.recv(1)
        except OSError:
            plain.close()

    print(listener.getsockname()[1], flush=True)
    while True:
        plain, _ = listener.accept()
        threading.Thread(target=answer, args=(plain,), daemon=True).start()


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2], deaf="deaf" in sys.argv[3:])
