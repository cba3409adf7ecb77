"""Every way to decode a batch against each prompt decoded plainly by itself: are the tokens the same?

    python3 benches/equality.py --prompts FILE.jsonl --work FOLDER

A line of the prompts is {"prompt": "..."} (raw text) or {"turns": ["...", ...]} (the first turn is the user's
message). Runs the example `generate` once plainly, one prompt at a time, then for each drafter, strategy and batch,
compares the token ids, and prints a table in Markdown. The exit status is 1 if any prompt differs. `self` drafts with
the model's own file multiplied with int8 activations. Results stay in the folder: a second call goes on with what is
missing. The keys and values of prompts are stored there too and read by all runs but the plain one.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

from generating import build_generate, read_prompts


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


def write_input(args: argparse.Namespace) -> Path:
    """The prompts as `generate` reads them."""
    prompts = enumerate(read_prompts(args.prompts, args.count))
    text = "".join(json.dumps({"id": i, **prompt}) + "\n" for i, prompt in prompts)
    path = args.work / "prompts.jsonl"
    if path.exists() and path.read_text() != text:
        sys.exit(f"{args.work} holds the results of other prompts")
    path.write_text(text)
    return path


def run(args: argparse.Namespace, name: str, options: list[str]) -> tuple[list[dict], dict]:
    """The results and the summary of one run, from the folder if they are there."""
    output, summary = args.work / f"{name}.jsonl", args.work / f"{name}.json"
    if not summary.exists():
        print(name, file=sys.stderr)
        partial = summary.with_suffix(".part")
        command = [args.generate, "--model", args.model, "--input", args.input, "--output", output]
        command += ["--summary", partial, "--max-new", str(args.max_new), "--dtype", args.dtype, *options]
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
        if done.returncode != 0:
            sys.exit(f"{name}: {done.stderr.strip().splitlines()[-1]}")
        partial.rename(summary)
    return lines(output), json.loads(summary.read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True, help="folder for results")
    parser.add_argument("--model", default="SmolLM2-135M-Instruct", help="path or name")
    parser.add_argument("--dtype", default="stored", help="of the target's weights")
    parser.add_argument("--count", type=int, help="so many prompts [default: all]")
    parser.add_argument("--max-new", type=int, default=128)
    parser.add_argument("--draft-length", default="4")
    parser.add_argument("--drafters", default="ngram,self")
    parser.add_argument("--strategies", default="slots,eqspec,exspec")
    parser.add_argument("--batches", default="1,4,8,16")
    parser.add_argument("--generate", type=Path, help="the example, built [default: built by Cargo]")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    args.input = write_input(args)
    args.generate = args.generate or build_generate()

    plain, _ = run(args, "plain", ["--drafter", "none"])
    tokens = sum(len(line["ids"]) for line in plain)
    print(f"{len(plain)} prompts, {tokens} tokens, drafts of {args.draft_length}\n")
    print("| drafter | strategy | batch | prompts equal | tokens a pass | drafts accepted | rows in a step |")
    print("|---|---|---:|---:|---:|---:|---:|")
    same = True
    for drafter in args.drafters.split(","):
        for strategy in args.strategies.split(","):
            for batch in args.batches.split(","):
                options = ["--drafter", f"model:{args.model}", "--draft-activations", "int8"]
                options = options if drafter == "self" else ["--drafter", drafter]
                options += ["--draft-length", args.draft_length, "--strategy", strategy, "--batch", batch]
                options += ["--prefix-store", args.work / "store"]
                results, summary = run(args, f"{drafter}-{strategy}-{batch}", options)
                equal = sum(a["ids"] == b["ids"] for a, b in zip(plain, results, strict=True))
                same = same and equal == len(plain)
                # There is none where nothing was drafted.
                rate = "" if summary["acceptance_rate"] is None else f"{summary['acceptance_rate']:.0%}"
                print(
                    f"| {drafter} | {strategy} | {batch} | {equal} of {len(plain)} "
                    f"| {summary['acceptance_length']:.2f} | {rate} "
                    f"| {summary['rows_per_round']:.2f} |",
                    flush=True,
                )
    sys.exit(0 if same else 1)


if __name__ == "__main__":
    main()
