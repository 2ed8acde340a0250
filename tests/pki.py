"""Certificates for tests, made with the openssl command."""

import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Authority:
    """A certificate authority for a test."""

    folder: Path

    @property
    def certificate(self) -> Path:
        return self.folder / "ca.pem"

    @staticmethod
    def create(folder: Path, name: str = "Test CA") -> "Authority":
        folder.mkdir(parents=True, exist_ok=True)
        made = Authority(folder)
        _openssl(
            "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
            "-subj", f"/CN={name}", "-keyout", str(folder / "ca.key"), "-out", str(made.certificate),
        )  # fmt: skip
        return made

    def issue(self, name: str, *, subject: str, hosts: str = "DNS:localhost,IP:127.0.0.1", days: int = 2) -> Path:
        """Issue a certificate; return a file with key and certificate. Negative `days` make an expired one."""
        key, request, certificate = (self.folder / f"{name}.{kind}" for kind in ("key", "csr", "crt"))
        _openssl(
            "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", subject,
            "-addext", f"subjectAltName={hosts}", "-keyout", str(key), "-out", str(request),
        )  # fmt: skip
        extensions = self.folder / f"{name}.ext"
        extensions.write_text(f"subjectAltName={hosts}\nextendedKeyUsage=serverAuth,clientAuth\n")
        _openssl(
            "x509", "-req", "-in", str(request), "-CA", str(self.certificate), "-CAkey", str(self.folder / "ca.key"),
            "-CAcreateserial", "-extfile", str(extensions), "-days", str(days), "-out", str(certificate),
        )  # fmt: skip
        both = self.folder / f"{name}.pem"
        both.write_text(key.read_text() + certificate.read_text())
        return both

    def pkcs12(self, name: str, password: str, *, with_authority: bool = False) -> Path:
        """Convert the result of `issue` to a PKCS12 store."""
        path = self.folder / f"{name}.p12"
        more = ["-certfile", str(self.certificate)] if with_authority else []
        _openssl(
            "pkcs12", "-export", "-in", str(self.folder / f"{name}.pem"), *more, "-name", name, "-out", str(path),
            "-passout", f"pass:{password}",
        )  # fmt: skip
        return path


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)
