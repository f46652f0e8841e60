"""Installs the emulators into a cache folder of the user, once for every checkout.

The folder is $TIDEWHEEL_EMULATORS, else ~/.cache/tidewheel. What is in it is named by version or by the digest of the
requirements, is complete when it has its name, and is never changed: so several test runs may share it, and an
upgrade is a new name beside the old one. Needs cargo, Python 3.11 and the two package registries.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

DYNOXIDE = "3.2.0"
REQUIREMENTS = Path(__file__).with_name("requirements.txt")


def cache():
    """The folder, made if it is not there."""
    named = os.environ.get("TIDEWHEEL_EMULATORS")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = Path(named) if named else base / "tidewheel"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextlib.contextmanager
def _alone():
    """One installation at a time."""
    with open(cache() / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _call(*command):
    """Runs a command; what it says is news, not a result, so it goes to standard error."""
    subprocess.run([str(part) for part in command], check=True, stdout=sys.stderr)


def dynoxide():
    """The path of the DynamoDB emulator's binary; about two minutes on two cores the first time."""
    home = cache() / f"dynoxide-{DYNOXIDE}"
    binary = home / "bin" / "dynoxide"
    if binary.exists():
        return binary
    with _alone():
        if not binary.exists():
            print(f"building dynoxide {DYNOXIDE} into {home}", file=sys.stderr)
            # Its SQLite cannot share a lock file with ours, so it is no dependency but a program of its own.
            build = home / "build"
            _call(
                "cargo",
                "install",
                "dynoxide-rs",
                "--version",
                DYNOXIDE,
                "--locked",
                "--no-default-features",
                "--features",
                "native-sqlite,http-server,cli",
                "--root",
                home,
                "--target-dir",
                build,
            )
            shutil.rmtree(build, ignore_errors=True)
    return binary


def python():
    """The path of a Python that has MiniStack and boto3: exactly what requirements.txt names."""
    digest = hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()[:16]
    home = cache() / f"stack-{digest}"
    binary = home / "bin" / "python"
    complete = home / "complete"
    if complete.exists():
        return binary
    with _alone():
        if not complete.exists():
            print(f"installing the stack's emulator into {home}", file=sys.stderr)
            shutil.rmtree(home, ignore_errors=True)
            _call(sys.executable, "-m", "venv", home)
            _call(
                binary, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "-r", REQUIREMENTS
            )
            complete.touch()
    return binary
