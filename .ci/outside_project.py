"""Builds and runs the ten lines of the README in a project outside the workspace, against the packaged crates."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MODEL = "SmolLM2-135M-Instruct.Q4_1.gguf"


def main() -> None:
    code = re.search(r"## Ten lines\n.*?```rust[^\n]*\n(.*?)```", (ROOT / "README.md").read_text(), re.S)[1]
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    model = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder)
        patches = []
        for crate in sorted((target / "package").glob("specdec*-0.1.0.crate")):
            with tarfile.open(crate) as archive:
                archive.extractall(project / "crates")
            name = crate.name.removesuffix("-0.1.0.crate")
            patches.append(f'{name} = {{ path = "crates/{name}-0.1.0" }}')
        assert len(patches) >= 11, patches
        (project / "src").mkdir()
        (project / "src/main.rs").write_text(code)
        (project / "Cargo.toml").write_text(
            '[package]\nname = "outside"\nversion = "0.1.0"\nedition = "2024"\n\n[workspace]\n\n'
            '[dependencies]\nspecdec = "0.1.0"\n\n'
            # A quick build: what counts is that it builds and runs. The kernels would take minutes at level 0.
            "[profile.dev]\ndebug = false\n\n[profile.dev.package.specdec-kernels]\nopt-level = 3\n\n"
            "[patch.crates-io]\n" + "\n".join(patches) + "\n"
        )
        # The workspace's versions of everything else.
        shutil.copy(ROOT / "Cargo.lock", project / "Cargo.lock")
        (project / MODEL).symlink_to(model)
        run = subprocess.run(
            ["cargo", "run", "--quiet", "--target-dir", str(target / "outside")],
            cwd=project,
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
    assert len(run.stdout.strip()) > 20, run.stdout
    print("a project of its own says:", run.stdout.strip()[:120].replace("\n", " "))


if __name__ == "__main__":
    main()
