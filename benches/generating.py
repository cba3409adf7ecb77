"""What the comparisons share: prompts for the example `generate`, and the program."""

import json
import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def read_prompts(path: Path, count: int | None = None) -> list[dict]:
    """So many lines of a file (all without a count) as `generate` reads them, evenly over the file, which may be sorted
    by kind. A line is {"prompt": "..."} (raw text) or {"turns": ["...", ...]} (the first turn is the user's message)."""
    lines = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    count = min(count or len(lines), len(lines))
    lines = [lines[i * len(lines) // count] for i in range(count)]
    return [
        {"messages": [{"role": "user", "content": line["turns"][0]}]} if "turns" in line else {"prompt": line["prompt"]}
        for line in lines
    ]


def build_generate() -> Path:
    """Builds the example by Cargo; where it is then."""
    subprocess.run(["cargo", "build", "--release", "--example", "generate"], cwd=ROOT, check=True)
    return Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release/examples/generate"
