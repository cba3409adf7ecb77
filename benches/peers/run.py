"""specdec beside llama.cpp: one run, the same file, prompts, token counts and threads, engines in turns.

    python3 -m venv env && env/bin/pip install llama-cpp-python numpy
    cargo build --release --example generate
    env/bin/python benches/peers/run.py --model FILE.gguf --prompts FILE.jsonl

A line of the prompts is {"prompt": "..."} (raw text) or {"turns": ["...", ...]} (the first turn is the user's
message). Rates count generated tokens over decoding time; the prompt's time is not in it. Prints a table in Markdown.
"""

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# llama.cpp's threads spin while they wait; on shared cores that starves the others.
os.environ.setdefault("GOMP_SPINCOUNT", "100")


def read_prompts(path: Path, count: int) -> list[dict]:
    lines = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    # Evenly over the file, which is sorted by kind.
    lines = [lines[i * len(lines) // count] for i in range(min(count, len(lines)))]
    prompts = []
    for number, line in enumerate(lines):
        if "turns" in line:
            entry = {"messages": [{"role": "user", "content": line["turns"][0]}]}
        else:
            entry = {"prompt": line["prompt"]}
        prompts.append({"id": number, "category": line.get("category", ""), **entry})
    return prompts


class Specdec:
    """The `generate` example with some arguments."""

    def __init__(self, name: str, args: argparse.Namespace, *arguments: str):
        self.name, self.args, self.arguments = name, args, arguments

    def run(self, prompts: list[dict]) -> tuple[list[list[int]], list[list[int]], float, int]:
        with tempfile.TemporaryDirectory() as folder:
            source, output, summary = (Path(folder) / n for n in ("in", "out", "summary"))
            source.write_text("".join(json.dumps({k: p[k] for k in p if k != "category"}) + "\n" for p in prompts))
            command = [str(os.environ.get("GENERATE", ROOT / "target/release/examples/generate")), "--model", str(self.args.model)]
            command += ["--input", str(source), "--output", str(output), "--summary", str(summary)]
            command += ["--max-new", str(self.args.max_new), "--threads", str(self.args.threads)]
            subprocess.run(command + list(self.arguments), check=True, stderr=subprocess.DEVNULL)
            lines = [json.loads(line) for line in output.read_text().splitlines()]
            report = json.loads(summary.read_text())
        ids = [line["ids"] for line in lines]
        # The first token of each output belongs to the prompt's pass.
        count = report["new_tokens"] - len(lines)
        return [line["prompt_ids"] for line in lines], ids, report["decode_seconds"], count


class LlamaCpp:
    """llama.cpp through its Python binding, greedy; one sequence at a time, or several in one context."""

    def __init__(self, name: str, args: argparse.Namespace, lookup: bool = False, batch: int = 1):
        import llama_cpp
        from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

        self.name, self.args, self.batch, self.cpp = name, args, batch, llama_cpp
        draft = LlamaPromptLookupDecoding(num_pred_tokens=4, max_ngram_size=3) if lookup else None
        common = {"n_threads": args.threads, "n_threads_batch": args.threads, "verbose": False}
        self.llama = llama_cpp.Llama(
            str(args.model), n_ctx=4096, draft_model=draft, logits_all=lookup, seed=0, **common
        )
        self.stops = {self.llama.token_eos()}

    def run_ids(self, prompts: list[list[int]]) -> tuple[list[list[int]], float, int]:
        if self.batch > 1:
            return self.run_batches(prompts)
        outputs, seconds, count = [], 0.0, 0
        for prompt in prompts:
            self.llama.reset()
            ids, started = [], None
            for token in self.llama.generate(prompt, temp=0.0, top_k=1, top_p=1.0, min_p=0.0, repeat_penalty=1.0):
                # The first token belongs to the prompt's pass.
                if started is None:
                    started = time.perf_counter()
                ids.append(token)
                if token in self.stops or len(ids) == self.args.max_new:
                    break
            seconds += time.perf_counter() - started
            count += len(ids) - 1
            outputs.append(ids)
        return outputs, seconds, count

    def run_batches(self, prompts: list[list[int]]) -> tuple[list[list[int]], float, int]:
        import ctypes

        import numpy

        cpp, vocab = self.cpp, self.llama.n_vocab()
        outputs, seconds, count = [[] for _ in prompts], 0.0, 0
        params = cpp.llama_context_default_params()
        params.n_seq_max, params.n_ctx = self.batch, 4096 * self.batch
        params.n_batch = params.n_ubatch = 2048
        params.n_threads = params.n_threads_batch = self.args.threads
        for first in range(0, len(prompts), self.batch):
            group = range(first, min(first + self.batch, len(prompts)))
            context = cpp.llama_init_from_model(self.llama.model, params)

            def decode(entries: list[tuple[int, int, int, bool]]) -> dict[int, int]:
                """Entries (token, position, sequence, wants logits) -> best token of each sequence that wanted."""
                batch = cpp.llama_batch_init(len(entries), 0, 1)
                batch.n_tokens = len(entries)
                for i, (token, position, sequence, wants) in enumerate(entries):
                    batch.token[i], batch.pos[i] = token, position
                    batch.n_seq_id[i], batch.logits[i] = 1, wants
                    batch.seq_id[i][0] = sequence
                assert cpp.llama_decode(context, batch) == 0
                best = {}
                for i, (_, _, sequence, wants) in enumerate(entries):
                    if wants:
                        row = ctypes.cast(cpp.llama_get_logits_ith(context, i), ctypes.POINTER(ctypes.c_float))
                        best[sequence] = int(numpy.argmax(numpy.ctypeslib.as_array(row, (vocab,))))
                cpp.llama_batch_free(batch)
                return best

            live = {}
            for sequence, number in enumerate(group):
                prompt = prompts[number]
                entries = [(t, i, sequence, i + 1 == len(prompt)) for i, t in enumerate(prompt)]
                live[sequence] = (decode(entries)[sequence], len(prompt))
                outputs[number].append(live[sequence][0])
            live = {s: v for s, v in live.items() if v[0] not in self.stops}
            started = time.perf_counter()
            while live:
                best = decode([(token, position, s, True) for s, (token, position) in live.items()])
                count += len(best)
                for sequence, token in best.items():
                    output = outputs[first + sequence]
                    output.append(token)
                    live[sequence] = (token, live[sequence][1] + 1)
                    if token in self.stops or len(output) == self.args.max_new:
                        del live[sequence]
            seconds += time.perf_counter() - started
            cpp.llama_free(context)
        return outputs, seconds, count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--count", type=int, default=24, help="prompts, evenly over the file")
    parser.add_argument("--max-new", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--without-llama", action="store_true")
    args = parser.parse_args()
    prompts = read_prompts(args.prompts, args.count)
    many = ("--batch", str(args.batch))
    plain, ngram, int8 = ("--drafter", "none"), ("--drafter", "ngram"), ("--activations", "int8")
    engines = [
        Specdec("specdec, plain", args, *plain),
        Specdec("specdec, n-gram", args, *ngram),
        Specdec("specdec, plain, int8", args, *plain, *int8),
        Specdec("specdec, n-gram, int8", args, *ngram, *int8),
        Specdec(f"specdec, plain, batch {args.batch}", args, *plain, *many),
        Specdec(f"specdec, n-gram, batch {args.batch}", args, *ngram, *many),
        Specdec(f"specdec, plain, int8, batch {args.batch}", args, *plain, *int8, *many),
        Specdec(f"specdec, n-gram, int8, batch {args.batch}", args, *ngram, *int8, *many),
    ]
    if not args.without_llama:
        engines += [
            LlamaCpp("llama.cpp, plain", args),
            LlamaCpp("llama.cpp, prompt look-up", args, lookup=True),
            LlamaCpp(f"llama.cpp, plain, batch {args.batch}", args, batch=args.batch),
        ]
    ids, rates, outputs = [], {e.name: [] for e in engines}, {}
    for _ in range(args.repeat):
        for engine in engines:
            if isinstance(engine, Specdec):
                ids, outputs[engine.name], seconds, count = engine.run(prompts)
            else:
                outputs[engine.name], seconds, count = engine.run_ids(ids)
            rates[engine.name].append(count / seconds)
    base = "llama.cpp, plain" if not args.without_llama else "specdec, plain"
    print(f"{len(prompts)} prompts, {args.max_new} new tokens at most, {args.threads} threads, medians of {args.repeat}")
    print(f"\n| engine | tokens/s | over {base} | same tokens as its plain run |\n|---|---|---|---|")
    for engine in engines:
        rate = statistics.median(rates[engine.name])
        ratio = rate / statistics.median(rates[base])
        own = "llama.cpp, plain" if engine.name.startswith("llama") else "specdec, plain"
        own += ", int8" if "int8" in engine.name else ""
        # The end token is part of neither side's comparison.
        cut = [[t for t in ids if t not in (2,)] for ids in outputs[own]]
        same = sum(a == [t for t in b if t not in (2,)] for a, b in zip(cut, outputs[engine.name]))
        print(f"| {engine.name} | {rate:.1f} | {ratio:.2f}x | {same} of {len(prompts)} |")


if __name__ == "__main__":
    main()
