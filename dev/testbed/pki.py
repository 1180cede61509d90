"""Keys, certificates and tokens of one cluster, made anew for each and written into its folder.

They guard nothing beyond a loopback port; they exist because the API server asks for them and because
certificates of our own satisfy the strict checks of every Python version (3.13 turned them on).
"""

import datetime
import ipaddress
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_NAMES = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")
_ADDRESSES = ("127.0.0.1", "10.96.0.1")
AUTHORITY: Final = "ca.crt"
# Every component is an administrator: what is under test is the operator's role, not theirs.
_USERS = ("admin", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kwok")


@dataclass(frozen=True)
class Credentials:
    """Paths of the written files, and the bearer token of each user."""

    ca: Path
    server_certificate: Path
    server_key: Path
    account_key: Path
    account_public_key: Path
    token_file: Path
    tokens: dict[str, str]


def write(folder: Path) -> Credentials:
    """Make everything new in `folder`, readable by its owner only."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    ca_key, server_key, account_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(3))
    ca = _ca(ca_key)
    tokens = {user: secrets.token_urlsafe(24) for user in _USERS}
    credentials = Credentials(
        ca=folder / AUTHORITY,
        server_certificate=folder / "apiserver.crt",
        server_key=folder / "apiserver.key",
        account_key=folder / "sa.key",
        account_public_key=folder / "sa.pub",
        token_file=folder / "tokens.csv",
        tokens=tokens,
    )
    credentials.ca.write_bytes(_pem(ca))
    credentials.server_certificate.write_bytes(_pem(_server(server_key, ca, ca_key)))
    credentials.server_key.write_bytes(_private(server_key))
    credentials.account_key.write_bytes(_private(account_key))
    credentials.account_public_key.write_bytes(
        account_key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    rows = [f'{token},{user},{user},"system:masters"\n' for user, token in tokens.items()]
    credentials.token_file.write_text("".join(rows))
    return credentials


def _ca(key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "testbed-ca")])
    usage = _usage(key_cert_sign=True)
    return (
        _builder(name, name, key.public_key(), key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA256())
    )


def _server(
    key: ec.EllipticCurvePrivateKey, ca: x509.Certificate, ca_key: ec.EllipticCurvePrivateKey
) -> x509.Certificate:
    names: list[x509.GeneralName] = [x509.DNSName(name) for name in _NAMES]
    names += [x509.IPAddress(ipaddress.ip_address(address)) for address in _ADDRESSES]
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kube-apiserver")])
    return (
        _builder(subject, ca.subject, key.public_key(), ca_key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(key_cert_sign=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(ca_key, hashes.SHA256())
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, signer: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=365))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer), critical=False)
    )


def _usage(*, key_cert_sign: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=key_cert_sign,
        crl_sign=key_cert_sign,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
