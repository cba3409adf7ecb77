"""The engines that `run.py` compares. Each takes prompts as token ids and decodes greedily."""

import ctypes
import json
import os
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path


class Refused(Exception):
    """An engine did not do what it was asked; the reason is the message."""


@dataclass
class Run:
    """What came out, and what it cost. Passes are timed whole, with reading logits and choosing tokens."""

    ids: list[list[int]]
    # Tokens that the passes in `decode_seconds` yielded.
    decoded: int
    decode_seconds: float
    prefilled: int
    prefill_seconds: float
    acceptance_length: float | None = None


class Specdec:
    """The `generate` example. A prompt's last token belongs to decoding: its pass yields the first new token."""

    family = "specdec"

    def __init__(self, drafter: str, length: str, int8: bool, batch: int, args):
        kind = {"none": "plain", "ngram": "n-gram", "vegas": "Vegas"}.get(drafter, "LiLiCorr")
        drafts = {"": "", "auto": ", adaptive"}.get(length, f", drafts of {length}")
        self.plain = "specdec, plain" + (", int8 activations" if int8 else "")
        self.name = f"specdec, {kind}{drafts}" + (", int8 activations" if int8 else "")
        self.name += f", batch {batch}" if batch > 1 else ""
        self.batch, self.args = batch, args
        self.arguments = ["--drafter", drafter, "--batch", str(batch), "--warm-up", "4"]
        self.arguments += ["--draft-length", length] if length else []
        self.arguments += ["--activations", "int8"] if int8 else []

    def run(self, prompts: list[list[int]], max_new: int) -> Run:
        lines = [{"prompt_ids": prompt} for prompt in prompts]
        results, report = generate(self.args, lines, max_new, *self.arguments)
        return Run(
            [line["ids"] for line in results],
            report["new_tokens"],
            # Everything that is no prefill pass: drafting, verifying, and what the drafter keeps up to date.
            report["generate_seconds"] - report["prefill_seconds"],
            report["prompt_tokens"],
            report["prefill_seconds"],
            report["acceptance_length"] if "none" not in self.arguments else None,
        )


def generate(args, lines: list[dict], max_new: int, *arguments: str) -> tuple[list[dict], dict]:
    """Lines out of the `generate` example, and its summary."""
    with tempfile.TemporaryDirectory() as folder:
        source, output, summary = (Path(folder) / name for name in ("in", "out", "summary"))
        source.write_text("".join(json.dumps(line) + "\n" for line in lines))
        command = [str(args.generate), "--model", str(args.model), "--input", str(source), "--output", str(output)]
        command += ["--summary", str(summary), "--max-new", str(max_new), "--threads", str(args.threads), *arguments]
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
        if done.returncode != 0:
            reasons = [line for line in done.stderr.splitlines() if line.startswith("Error: ")]
            raise Refused((reasons or [done.stderr])[0])
        results = [json.loads(line) for line in output.read_text().splitlines()]
        errors = [line["error"] for line in results if "error" in line]
        if errors:
            raise Refused(errors[0])
        return results, json.loads(summary.read_text())


class LlamaCpp:
    """llama.cpp by the low-level calls of `llama-cpp-python`: `llama_decode`, then the best token of each row.

    Several sequences share a context and a pass; a group of them ends before the next begins. Drafts come from
    the package's own prompt look-up and are judged in the pass of the sequence's next token. A prompt's pass
    yields the first new token.
    """

    family = "llama.cpp"

    def __init__(self, args, batch: int = 1, lookup: int = 0):
        self.plain = "llama.cpp, plain"
        self.name = f"llama.cpp, prompt look-up, drafts of {lookup}" if lookup else self.plain
        self.name += f", batch {batch}" if batch > 1 else ""
        self.args, self.batch, self.lookup = args, batch, lookup
        self.model = None

    def load(self) -> None:
        try:
            import llama_cpp
            import numpy
            from llama_cpp.llama_speculative import LlamaPromptLookupDecoding
        except ImportError as error:
            raise SystemExit(f"{error}: pip install llama-cpp-python numpy, or leave it out by --skip llama.cpp")
        self.cpp, self.numpy = llama_cpp, numpy
        # The high-level class loads the model and silences the log; its context stays unused.
        self.model = llama_cpp.Llama(str(self.args.model), n_ctx=64, verbose=False)
        self.end = self.model.token_eos()
        self.draft = LlamaPromptLookupDecoding(max_ngram_size=3, num_pred_tokens=self.lookup)

    def run(self, prompts: list[list[int]], max_new: int) -> Run:
        if self.model is None:
            self.load()
        # What happens once is in no engine's figures.
        self.group(prompts[:1], 4).close()
        run = Run([], 0, 0.0, 0, 0.0)
        rounds = accepted = 0
        for first in range(0, len(prompts), self.batch):
            group = self.group(prompts[first : first + self.batch], max_new)
            group.close()
            run.prefill_seconds += group.prefill_seconds
            run.decode_seconds += group.decode_seconds
            new = [tokens[length:] for tokens, length in zip(group.tokens, group.lengths)]
            run.ids += new
            run.decoded += sum(map(len, new)) - len(new)
            run.prefilled += sum(group.lengths)
            rounds, accepted = rounds + group.rounds, accepted + group.accepted
        if self.lookup and rounds:
            run.acceptance_length = 1 + accepted / rounds
        return run

    def group(self, prompts: list[list[int]], max_new: int) -> "Group":
        group = Group(self, prompts, max_new)
        started = time.perf_counter()
        group.prefill()
        group.prefill_seconds = time.perf_counter() - started
        started = time.perf_counter()
        while group.live:
            group.step()
        group.decode_seconds = time.perf_counter() - started
        return group


class Group:
    """Sequences that are decoded together in a context of llama.cpp."""

    def __init__(self, engine: LlamaCpp, prompts: list[list[int]], max_new: int):
        self.engine, self.cpp = engine, engine.cpp
        self.tokens = [list(prompt) for prompt in prompts]
        self.lengths = [len(prompt) for prompt in prompts]
        self.limits = [length + max_new for length in self.lengths]
        self.live = list(range(len(prompts)))
        self.rounds = self.accepted = 0
        self.prefill_seconds = self.decode_seconds = 0.0
        params = self.cpp.llama_context_default_params()
        params.n_seq_max = len(prompts)
        # Each sequence gets an equal share of the context, in whole pages of 256.
        params.n_ctx = params.n_batch = -(-(max(self.limits) + 8) // 256) * 256 * len(prompts)
        params.n_threads = params.n_threads_batch = engine.args.threads
        self.context = self.cpp.llama_init_from_model(engine.model.model, params)
        assert self.context, "llama.cpp made no context"
        self.batch = self.cpp.llama_batch_init(params.n_batch, 0, 1)

    def close(self) -> None:
        self.cpp.llama_batch_free(self.batch)
        self.cpp.llama_free(self.context)

    def decode(self, entries: list[tuple[int, int, int, bool]]) -> list[int]:
        """Entries (token, position, sequence, wants logits): the best next token of each that wants."""
        batch, vocab, best = self.batch, self.engine.model.n_vocab(), []
        batch.n_tokens = len(entries)
        for i, (token, position, sequence, wants) in enumerate(entries):
            batch.token[i], batch.pos[i], batch.logits[i] = token, position, wants
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequence
        status = self.cpp.llama_decode(self.context, batch)
        assert status == 0, f"llama_decode returned {status}"
        for i, entry in enumerate(entries):
            if entry[3]:
                row = ctypes.cast(self.cpp.llama_get_logits_ith(self.context, i), ctypes.POINTER(ctypes.c_float))
                best.append(int(self.engine.numpy.ctypeslib.as_array(row, (vocab,)).argmax()))
        return best

    def prefill(self) -> None:
        for sequence, tokens in enumerate(self.tokens):
            last = len(tokens) - 1
            tokens += self.decode([(token, i, sequence, i == last) for i, token in enumerate(tokens)])
        self.live = [sequence for sequence in self.live if not self.ended(sequence)]

    def step(self) -> None:
        entries, drafts = [], []
        for sequence in self.live:
            tokens = self.tokens[sequence]
            drafts.append(self.drafted(sequence))
            block = tokens[-1:] + drafts[-1]
            entries += [(token, len(tokens) - 1 + i, sequence, True) for i, token in enumerate(block)]
        best = iter(self.decode(entries))
        for sequence, draft in zip(self.live, drafts):
            tokens, found = self.tokens[sequence], [next(best) for _ in range(len(draft) + 1)]
            accepted = 0
            tokens.append(found[0])
            while accepted < len(draft) and draft[accepted] == tokens[-1] and not self.ended(sequence):
                accepted += 1
                tokens.append(found[accepted])
            self.rounds, self.accepted = self.rounds + 1, self.accepted + accepted
            if draft:
                memory = self.cpp.llama_get_memory(self.context)
                self.cpp.llama_memory_seq_rm(memory, sequence, len(tokens) - 1, -1)
        self.live = [sequence for sequence in self.live if not self.ended(sequence)]

    def drafted(self, sequence: int) -> list[int]:
        tokens, room = self.tokens[sequence], self.limits[sequence] - len(self.tokens[sequence]) - 1
        if self.engine.lookup == 0 or room <= 0:
            return []
        found = self.engine.draft(self.engine.numpy.array(tokens, dtype=self.engine.numpy.intc))
        return [int(token) for token in found[:room]]

    def ended(self, sequence: int) -> bool:
        tokens = self.tokens[sequence]
        return tokens[-1] == self.engine.end or len(tokens) >= self.limits[sequence]


class Candle:
    """candle's quantised Llama, one sequence at a time (`candle/`). A prompt's pass yields the first new token."""

    family, batch = "candle", 1

    def __init__(self, args):
        self.name = self.plain = "candle, plain"
        self.args = args

    def run(self, prompts: list[list[int]], max_new: int) -> Run:
        command = [str(self.args.candle), "--model", str(self.args.model), "--max-new", str(max_new)]
        lines = "".join(json.dumps({"prompt_ids": prompt}) + "\n" for prompt in prompts)
        environment = {**os.environ, "RAYON_NUM_THREADS": str(self.args.threads)}
        done = subprocess.run(command, input=lines, stdout=subprocess.PIPE, text=True, check=True, env=environment)
        results = [json.loads(line) for line in done.stdout.splitlines()]
        return Run(
            [line["ids"] for line in results],
            sum(len(line["ids"]) - 1 for line in results),
            sum(line["decode_seconds"] for line in results),
            sum(map(len, prompts)),
            sum(line["prefill_seconds"] for line in results),
        )
