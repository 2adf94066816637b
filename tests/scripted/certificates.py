"""Certificates for tests: an authority of our own, a server under it, a client under it."""

import ssl
import subprocess
from pathlib import Path

import msgspec

_DAYS = "30"
_KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
_LEAF = "basicConstraints=critical,CA:FALSE\nsubjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\n"
_SERVER = (
    _LEAF + "extendedKeyUsage=serverAuth\nsubjectAltName=DNS:localhost,IP:127.0.0.1,IP:127.0.0.2,IP:::1\n"
)
_CLIENT = _LEAF + "extendedKeyUsage=clientAuth\n"


class TlsFiles(msgspec.Struct, frozen=True):
    """Paths of PEM files. The server's certificate is for localhost, 127.0.0.1, 127.0.0.2 and ::1."""

    ca: str
    server_cert: str
    server_key: str
    client_cert: str  # common name "scripted-client"
    client_key: str

    def client_context(self, *, mutual: bool = False) -> ssl.SSLContext:
        """A client's context that trusts the authority, with the client's certificate if ``mutual``."""
        context = ssl.create_default_context(cafile=self.ca)
        context.options &= ~ssl.OP_IGNORE_UNEXPECTED_EOF  # which Python before 3.11.4 sets
        if mutual:
            context.load_cert_chain(self.client_cert, self.client_key)
        return context

    def server_context(self, *, mutual: bool = False) -> ssl.SSLContext:
        """The server's context; with ``mutual`` it asks for a certificate of the authority's."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=self.ca)
        context.load_cert_chain(self.server_cert, self.server_key)
        context.verify_mode = ssl.CERT_REQUIRED if mutual else ssl.CERT_NONE
        return context


def make_tls_files(folder: Path) -> TlsFiles:
    """Make the authority and both certificates in ``folder`` with the ``openssl`` program.

    Raises:
        FileNotFoundError: there is no such program.
        subprocess.CalledProcessError: it failed; its words are in ``stderr``.
    """
    _openssl(
        folder,
        *("req", "-x509", *_KEY, "-keyout", "ca.key", "-out", "ca.pem", "-days", _DAYS),
        *("-subj", "/CN=scripted test authority", "-addext", "keyUsage=critical,keyCertSign,cRLSign"),
    )
    _issue(folder, "server", "localhost", _SERVER)
    _issue(folder, "client", "scripted-client", _CLIENT)
    names = ("ca.pem", "server.pem", "server.key", "client.pem", "client.key")
    return TlsFiles(*(str(folder / name) for name in names))


def _issue(folder: Path, stem: str, common_name: str, extensions: str) -> None:
    """A key and a certificate ``stem.{key,pem}``, signed by the authority in the same folder."""
    (folder / f"{stem}.ext").write_text(extensions)
    request = ("-keyout", f"{stem}.key", "-out", f"{stem}.csr", "-subj", f"/CN={common_name}")
    _openssl(folder, "req", "-new", *_KEY, *request)
    signing = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", f"{stem}.ext")
    _openssl(folder, "x509", "-req", "-in", f"{stem}.csr", "-out", f"{stem}.pem", "-days", _DAYS, *signing)


def _openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)
