"""TLS before a server that has none: certificates made on the spot, and a door that speaks TLS and passes the rest on.

The Postgres of the wheel is built without it. Clients cannot tell: they ask for TLS as the protocol says, check the
certificate, and talk to a real server behind it.
"""

from __future__ import annotations

import asyncio
import datetime
import ssl
import struct
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_ASKS_FOR_TLS = 80877103


def authority(name: str) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    """Make a certificate authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    return key, _signed(name, key, key, name, x509.BasicConstraints(ca=True, path_length=None))


def _signed(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    signer: ec.EllipticCurvePrivateKey,
    issuer: str,
    extension: x509.ExtensionType,
) -> x509.Certificate:
    unsigned = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC))
        .not_valid_after(datetime.datetime(2120, 1, 1, tzinfo=datetime.UTC))
        .add_extension(extension, critical=False)
    )
    return unsigned.sign(signer, hashes.SHA256())


def write_authority(folder: Path, name: str) -> tuple[Path, ec.EllipticCurvePrivateKey]:
    """An authority, and the file by which others know it."""
    key, certificate = authority(name)
    path = folder / f"{name}.crt"
    path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    return path, key


def context_for(host: str, folder: Path, signer: ec.EllipticCurvePrivateKey, issuer: str) -> ssl.SSLContext:
    """Return the context of a server of that name."""
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = _signed(host, key, signer, issuer, x509.SubjectAlternativeName([x509.DNSName(host)]))
    path = folder / "server.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(private + certificate.public_bytes(serialization.Encoding.PEM))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    return context


class Door:
    """Listens on loopback, insists on TLS, and passes what it is told to a server's socket."""

    def __init__(self, socket: Path, context: ssl.SSLContext) -> None:
        self._socket = socket
        self._context = context
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> int:
        """The port on which it listens."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Hang up."""
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, client: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._admit(client, answers)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # it did not like our certificate, or is gone
        finally:
            self._tasks.discard(task)
            answers.close()

    async def _admit(self, client: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        _, asked = struct.unpack("!II", await client.readexactly(8))
        assert asked == _ASKS_FOR_TLS, "a client that talks without TLS"
        answers.write(b"S")
        await answers.drain()
        await answers.start_tls(self._context)
        reader, writer = await asyncio.open_unix_connection(str(self._socket))
        try:
            await asyncio.gather(_pass_on(client, writer), _pass_on(reader, answers))
        finally:
            writer.close()


async def _pass_on(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while data := await source.read(65536):
        target.write(data)
        await target.drain()
    target.close()
