"""specdec beside llama.cpp and candle: one run, the same file, prompts, token counts and threads, engines in turns.

    python3 -m venv env
    env/bin/pip install llama-cpp-python numpy matplotlib
    env/bin/python benches/peers/run.py --model FILE.gguf --prompts FILE.jsonl --plot FILE.svg

A line of the prompts is {"prompt": "..."} (raw text) or {"turns": ["...", ...]} (the first turn is the user's
message). Decoding rates count new tokens over the time of all that is not a prompt's pass; prompt rates count prompt
tokens over the time of prompts' passes. Prints tables in Markdown, and how far it is on stderr. matplotlib is needed
for --plot alone, llama-cpp-python and numpy for llama.cpp alone.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from engines import Candle, LlamaCpp, Refused, Run, Specdec, generate

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))

from generating import build_generate, read_prompts  # noqa: E402


def build(args: argparse.Namespace) -> None:
    """The programs that were not given, by Cargo."""
    if args.generate is None:
        args.generate = build_generate()
    if args.candle is None:
        # candle has vector code for some formats; what it leaves to the compiler needs to know the machine.
        target = HERE / "target/native"
        command = ["cargo", "build", "--release", "-p", "specdec-peers-candle", "--target-dir", str(target)]
        environment = {**os.environ, "RUSTFLAGS": "-C target-cpu=native"}
        subprocess.run(command, cwd=HERE, check=True, env=environment)
        args.candle = target / "release/specdec-peers-candle"


def all_engines(args: argparse.Namespace) -> list:
    engines = [
        LlamaCpp(args),
        LlamaCpp(args, lookup=4),
        LlamaCpp(args, batch=args.batch),
        Candle(args),
    ]
    drafters = [("none", ""), ("ngram", "4"), ("ngram", "auto"), ("vegas", "4"), ("vegas", "auto")]
    drafters += [(f"lilicorr:{args.lilicorr}", length) for length in ("4", "auto")]
    for batch in (1, args.batch):
        for int8 in (False, True):
            engines += [Specdec(drafter, length, int8, batch, args) for drafter, length in drafters]
    return engines


def measure(engines: list, prompts: list[list[int]], max_new: int, repeat: int) -> dict[str, list[Run]]:
    """The runs of each engine; one that refuses is named on stderr and left out."""
    runs = {engine.name: [] for engine in engines}
    for _ in range(repeat):
        for engine in engines:
            if engine.name not in runs:
                continue
            started = time.perf_counter()
            try:
                runs[engine.name].append(engine.run(prompts, max_new))
                print(f"{engine.name}: {time.perf_counter() - started:.0f} s", file=sys.stderr)
            except Refused as reason:
                print(f"{engine.name}: {reason}", file=sys.stderr)
                del runs[engine.name]
    return runs


def base_of(engines: list) -> str:
    names = [engine.name for engine in engines]
    if not names:
        raise SystemExit("no engine is left")
    return "llama.cpp, plain" if "llama.cpp, plain" in names else names[0]


def decode_rate(runs: list[Run]) -> float:
    return statistics.median(run.decoded / run.decode_seconds for run in runs)


def prefill_rate(runs: list[Run]) -> float:
    return statistics.median(run.prefilled / run.prefill_seconds for run in runs)


def same(runs: dict[str, list[Run]], name: str, other: str) -> str:
    if other not in runs or other == name:
        return ""
    ours, theirs = runs[name][-1].ids, runs[other][-1].ids
    return f"{sum(a == b for a, b in zip(ours, theirs))} of {len(ours)}"


def decode_table(engines: list, runs: dict[str, list[Run]], base: str) -> None:
    print(f"| engine | tokens/s | over {base} | acceptance length | prompt tokens/s | as its own plain run | as {base} |")
    print("|---|---|---|---|---|---|---|")
    for engine in engines:
        name, mine = engine.name, runs[engine.name]
        length = mine[-1].acceptance_length
        cells = [name, f"{decode_rate(mine):.1f}", f"{decode_rate(mine) / decode_rate(runs[base]):.2f}x"]
        cells += ["" if length is None else f"{length:.2f}", f"{prefill_rate(mine):.0f}"]
        print("| " + " | ".join(cells + [same(runs, name, engine.plain), same(runs, name, base)]) + " |")


def prefill_table(engines: list, runs: dict[str, list[Run]], base: str) -> None:
    print(f"| engine | ms a prompt | prompt tokens/s | over {base} |\n|---|---|---|---|")
    for engine in engines:
        mine = runs[engine.name]
        rate, ratio = prefill_rate(mine), prefill_rate(mine) / prefill_rate(runs[base])
        milliseconds = statistics.median(run.prefill_seconds / len(run.ids) for run in mine) * 1e3
        print(f"| {engine.name} | {milliseconds:.0f} | {rate:.0f} | {ratio:.2f}x |")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--count", type=int, default=24, help="prompts, evenly over the file")
    parser.add_argument("--max-new", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=3, help="turns; rates are medians")
    parser.add_argument("--batch", type=int, default=8, help="rows of the batched engines")
    shipped = HERE.parents[1] / "assets/smollm2-drafter"
    parser.add_argument("--lilicorr", type=Path, default=shipped, help="folder of a block drafter")
    parser.add_argument("--only", action="append", default=[], help="a part of an engine's name; may be repeated")
    parser.add_argument("--skip", action="append", default=[], help="a part of an engine's name; may be repeated")
    parser.add_argument("--prefill", type=int, default=512, help="tokens of the prefill table's prompts; 0: no table")
    parser.add_argument("--prefill-count", type=int, default=4, help="prompts of the prefill table")
    parser.add_argument("--no-decode", action="store_true", help="the prefill table alone")
    parser.add_argument("--plot", type=Path, help="an SVG file of the first table")
    parser.add_argument("--generate", type=Path, help="the generate example [default: built by Cargo]")
    parser.add_argument("--candle", type=Path, help="the candle engine [default: built by Cargo]")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    if args.plot:
        from figure import draw
    engines = [
        engine
        for engine in all_engines(args)
        if (not args.only or any(part in engine.name for part in args.only))
        and not any(part in engine.name for part in args.skip)
    ]
    base_of(engines)
    build(args)
    # All engines get the ids of one tokenizer.
    lines, _ = generate(args, read_prompts(args.prompts, args.count), 1, "--activations", "int8")
    prompts = [line["prompt_ids"] for line in lines]
    host = f"{args.threads} threads, medians of {args.repeat}"
    if not args.no_decode:
        runs = measure(engines, prompts, args.max_new, args.repeat)
        engines = [engine for engine in engines if engine.name in runs]
        base = base_of(engines)
        tokens = statistics.mean(map(len, prompts))
        print(f"{len(prompts)} prompts of {tokens:.0f} tokens on average, {args.max_new} new tokens at most, {host}\n")
        decode_table(engines, runs, base)
        if args.plot:
            draw(args.plot, engines, {name: decode_rate(runs[name]) for name in runs}, base)
    if args.prefill:
        # Those that draft nothing, one prompt at a time.
        engines = [engine for engine in engines if engine.name == engine.plain]
        base = base_of(engines)
        text = [token for prompt in prompts for token in prompt]
        text *= -(-args.prefill * args.prefill_count // len(text))
        cut = [text[i * args.prefill : (i + 1) * args.prefill] for i in range(args.prefill_count)]
        runs = measure(engines, cut, 1, args.repeat)
        print(f"\n{len(cut)} prompts of {args.prefill} tokens, one at a time, {host}\n")
        prefill_table(engines, runs, base)


if __name__ == "__main__":
    main()
