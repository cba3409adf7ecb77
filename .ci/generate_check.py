"""Runs the `generate` example on a few lines, good and bad, with and without drafts, and checks what
comes out."""

import json
import subprocess
import tempfile
from pathlib import Path

LINES = [
    {"id": "a", "prompt": "The three primary colours are", "max_new": 12},
    {"id": "b", "messages": [{"role": "user", "content": "Count to five."}], "options": {"max_new": 16}},
    {"id": "bad", "prompt": "x", "messages": []},
    {"id": "unknown", "prompt": "x", "tempperature": 1.0},
    {"id": "ids", "prompt_ids": [504, 253], "max_new": 8},
    {"id": "vocabulary", "prompt_ids": [10_000_000]},
    {"prompt": "One two three one two three one two", "max_new": 12},
    {"id": "no options", "prompt": "x", "options": "y"},
    {"id": "twice", "prompt": "x", "options": {"prompt": "y"}},
]


def run(folder: Path, *arguments: str) -> tuple[list[dict], dict]:
    source, output, summary = (folder / name for name in ("in.jsonl", "out.jsonl", "summary.json"))
    source.write_text("".join(json.dumps(line) + "\n" for line in LINES) + "not json\n")
    command = ["cargo", "run", "--quiet", "--release", "--example", "generate", "--"]
    command += ["--input", str(source), "--output", str(output), "--summary", str(summary)]
    subprocess.run(command + list(arguments), check=True)
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    return lines, json.loads(summary.read_text())


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        plain, _ = run(Path(folder), "--drafter", "none")
        fast, summary = run(Path(folder), "--drafter", "ngram", "--draft-length", "4", "--batch", "3")
        others = [
            run(Path(folder), "--batch", "3", "--strategy", strategy, "--draft-length", length)[0]
            for strategy, length in (("eqspec", "per-row"), ("eqspec-refill", "3"), ("exspec:4", "per-row"))
        ]
        others += [
            run(Path(folder), "--batch", "2", *more)[0]
            for more in (
                ("--drafter", "vegas:0.2", "--draft-length", "3"),
                ("--drafter", "lilicorr", "--draft-length", "4"),
                ("--drafter", "dflash", "--draft-length", "2"),
                ("--draft-length", "adaptive"),
                ("--prefix-store", str(Path(folder) / "store")),
            )
        ]
        sampled = [
            run(Path(folder), "--drafter", d, "--batch", b, "--temperature", "0.8", "--seed", "7", "--draft-length", "4")[0]
            for d, b in (("none", "1"), ("ngram", "4"))
        ]
    assert [line["id"] for line in plain] == ["a", "b", "bad", "unknown", "ids", "vocabulary", 6, "no options", "twice", 9]
    assert [line["id"] for line in plain if "error" in line] == ["bad", "unknown", "vocabulary", "no options", "twice", 9]
    for key in ("id", "prompt_ids", "ids", "text", "finish", "error"):
        assert [line.get(key) for line in plain] == [line.get(key) for line in fast], key
        for other in others:
            assert [line.get(key) for line in plain] == [line.get(key) for line in other], key
        assert [line.get(key) for line in sampled[0]] == [line.get(key) for line in sampled[1]], key
    assert summary["errors"] == 6 and summary["new_tokens"] == sum(len(l.get("ids", [])) for l in fast)
    assert summary["tokens_per_second"] > 0 and summary["peak_memory_bytes"] > 0
    print("generate: plain, drafted and sampled runs agree; bad lines are named")


if __name__ == "__main__":
    main()
