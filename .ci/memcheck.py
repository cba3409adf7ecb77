"""Runs the tests of specdec-kernels, the crate with unsafe code, under valgrind's memcheck; any error fails.

valgrind knows no AVX-512 and hides it from the programs it runs: this checks the AVX2 and the portable paths. Where
valgrind is missing and apt-get cannot install it, prints "skipped: no valgrind" and exits with 0.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CRATE = "specdec-kernels"
# The crate's directory is where Cargo runs its tests.
FOLDER = ROOT / "crates" / CRATE


def valgrind() -> str | None:
    found = shutil.which("valgrind")
    if found or not shutil.which("apt-get"):
        return found
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    # The package lists may be missing or stale.
    for command in (["update", "-qq"], ["install", "-y", "-qq", "valgrind"]):
        subprocess.run(["apt-get", *command], **quiet, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"})
    return shutil.which("valgrind")


def executables() -> list[Path]:
    """The unit tests and the `it` tests of the crate: those of the suite, in the environment that it runs in."""
    command = ["cargo", "test", "--release", "--workspace", "--no-run", "--message-format=json"]
    built = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    found = []
    for line in built.stdout.splitlines():
        message = json.loads(line)
        if message["reason"] != "compiler-artifact" or not message["executable"] or not message["profile"]["test"]:
            continue
        if Path(message["manifest_path"]) == FOLDER / "Cargo.toml" and message["target"]["kind"] != ["bench"]:
            found.append(Path(message["executable"]))
    return found


def main() -> None:
    checker = valgrind()
    if checker is None:
        print("skipped: no valgrind")
        return
    tests = executables()
    assert len(tests) >= 2, f"the unit tests and the `it` tests of {CRATE} are expected: {tests}"
    for test in tests:
        command = [checker, "-q", "--error-exitcode=9", str(test), "--test-threads", "1"]
        status = subprocess.run(command, cwd=FOLDER).returncode
        if status != 0:
            sys.exit(f"{test.name}: exit status {status} (9: memcheck found an error)")
    print(f"memcheck: {len(tests)} test executables of {CRATE} are clean")


if __name__ == "__main__":
    main()
