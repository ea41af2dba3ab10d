"""Signatures of a run's manifest with ssh keys, made and verified by `ssh-keygen -Y`."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from homestretch.lab.errors import WrongUse

NAMESPACE = "homestretch"
SIGNATURE = "manifest.json.sig"
SIGNERS = "allowed_signers"


@dataclass(frozen=True, kw_only=True)
class Signed:
    """state: passed, failed or unchecked; text for the page."""

    state: str
    text: str


def tool() -> str | None:
    return shutil.which("ssh-keygen")


def sign(folder: Path, key: Path) -> Path:
    """Sign `manifest.json` with a private ssh key; WrongUse when ssh-keygen or the key cannot be used."""
    program = tool()
    if program is None:
        raise WrongUse("the manifest cannot be signed: ssh-keygen is not installed; install OpenSSH or publish without --sign")
    target = folder / SIGNATURE
    target.unlink(missing_ok=True)
    done = subprocess.run(
        [program, "-q", "-Y", "sign", "-f", str(key), "-n", NAMESPACE, str(folder / "manifest.json")],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=60,
        check=False,
    )
    if done.returncode or not target.is_file():
        said = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise WrongUse(
            f"the manifest could not be signed with {key.name}: {said}; give a private ssh key that needs no passphrase prompt"
        )
    return target


def verify(folder: Path, signers: Path | None) -> Signed | None:
    """None for a run without signature. signers: an `allowed_signers` file; without one only the signature's own key is checked."""
    signature, manifest = folder / SIGNATURE, folder / "manifest.json"
    if not signature.is_file() or signature.is_symlink() or not manifest.is_file():
        return None
    program = tool()
    if program is None:
        return Signed(state="unchecked", text="signed; not verified here, ssh-keygen is not installed")
    data = manifest.read_bytes()
    if signers is not None and signers.is_file():
        who = principals(program, signature, signers)
        for name in who:
            command = [program, "-Y", "verify", "-f", str(signers), "-I", name, "-n", NAMESPACE, "-s", str(signature)]
            if run(command, data) == 0:
                return Signed(state="passed", text=f"manifest signed by {name}")
    if run([program, "-Y", "check-novalidate", "-n", NAMESPACE, "-s", str(signature)], data) == 0:
        return Signed(state="unchecked", text="manifest signed by a key that this site does not list")
    return Signed(state="failed", text="the manifest's signature does not fit")


def principals(program: str, signature: Path, signers: Path) -> list[str]:
    """Names under which the signature's key is listed."""
    command = [program, "-Y", "find-principals", "-f", str(signers), "-s", str(signature)]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60, check=False)
    return done.stdout.split() if done.returncode == 0 else []


def run(command: list[str], data: bytes) -> int:
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.seek(0)
        return subprocess.run(command, stdin=file, capture_output=True, timeout=60, check=False).returncode


def signature_state(folders: list[Path], signers: Path | None = None) -> Signed | None:
    """One line over a setup's runs: the worst state of those that are signed, None when none is."""
    found = [signed for folder in folders if (signed := verify(folder, signers)) is not None]
    order = {"failed": 0, "unchecked": 1, "passed": 2}
    return min(found, key=lambda signed: order[signed.state], default=None)
