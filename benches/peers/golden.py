"""The best five logits of llama.cpp along given continuations, with keys and values in f32 or f16.

    python3 benches/peers/golden.py MODEL.gguf golden-smollm2.json f32 OUT.json

Prints how far they lie from the logits in the golden file. Needs: pip install llama-cpp-python==0.3.36 gguf

MODEL.gguf may hold quantised weights: they are dequantised to f32 first, into a temporary file.
"""

import json
import sys
import tempfile
from pathlib import Path

import gguf
import llama_cpp
import numpy as np

KINDS = {"f32": 0, "f16": 1}
HEADER = ("general.architecture", "general.file_type", "general.quantization_version")


def dequantise(source, target):
    """Writes a GGUF file with the same metadata and all tensors in f32."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in HEADER:
            continue
        kind, rest = field.types[0], {}
        if kind == gguf.GGUFValueType.ARRAY:
            rest["sub_type"] = field.types[-1]
        writer.add_key_value(name, field.contents(), kind, **rest)
    writer.add_file_type(0)
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        writer.add_tensor(tensor.name, values.reshape([int(n) for n in reversed(tensor.shape)]))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def continuations(model, cases, kind):
    """The best five of each step, and the largest difference from the file's."""
    llm = llama_cpp.Llama(
        str(model), n_ctx=2048, n_threads=1, n_threads_batch=1, verbose=False, type_k=kind, type_v=kind
    )
    found, farthest = [], 0.0
    for case in cases:
        llm.reset()
        llm.eval(case["prompt_ids"])
        steps = []
        for token, top in zip(case["greedy_ids"], case["top5"]):
            pointer = llama_cpp.llama_get_logits_ith(llm._ctx.ctx, -1)
            logits = np.ctypeslib.as_array(pointer, shape=(llm.n_vocab(),))
            best = np.argsort(-logits, kind="stable")[:5]
            steps.append([[int(i), round(float(logits[i]), 4)] for i in best])
            farthest = max([farthest] + [abs(float(logits[i]) - value) for i, value in top])
            llm.eval([token])
        found.append(steps)
    return found, farthest


def main():
    model, golden, kind, out = sys.argv[1:]
    cases = json.loads(Path(golden).read_text())["cases"]
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "f32.gguf"
        dequantise(model, plain)
        found, farthest = continuations(plain, cases, KINDS[kind])
    lines = ["[" + ",\n".join(json.dumps(step, separators=(",", ":")) for step in case) + "]" for case in found]
    Path(out).write_text("[" + ",\n".join(lines) + "]\n")
    print(f"keys and values in {kind}: {farthest:.2e} from the golden file")


main()
