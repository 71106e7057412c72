#!/usr/bin/env python3
"""How far quantised arithmetic moves the logits, here and in llama.cpp: mean KL divergence from a 32-bit run of the same weights.

    tests/compare_kl.py --perplexity ~/llama.cpp/build/bin/llama-perplexity --text README.md model-q8_0.gguf model-q4_k.gguf

llama.cpp: the file is written again with all weights as F32; llama-perplexity keeps that file's logits with an f32 KV cache and
compares those of the file itself with its default cache (f16). fastgen: perplexity --kl. Both cut the text into windows of the context; llama.cpp
scores the second half of each window, fastgen all of it. Needs numpy and the gguf package from PyPI.
"""
import argparse
import os
import re
import subprocess
import tempfile

import gguf
import numpy as np

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def as_floats(source, target):
    """Writes `source` again with every tensor as F32."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, "llama", use_temp_file=True)
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        kind = field.types[0]
        sub = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), kind, sub_type=sub)
    for tensor in reader.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        writer.add_tensor(tensor.name, np.ascontiguousarray(values, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def output_of(command, folder=None):
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise SystemExit("%s\n%s" % (" ".join(command), done.stdout[-2000:]))
    return done.stdout


def llama_cpp(args, model, folder):
    floats, logits = os.path.join(folder, "f32.gguf"), os.path.join(folder, "logits")
    as_floats(model, floats)
    common = [os.path.abspath(args.perplexity), "-c", str(args.context), "-b", str(args.context), "-t", str(os.cpu_count()), "-f",
              os.path.abspath(args.text), "--kl-divergence-base", logits]
    output_of(common + ["-m", floats, "-ctk", "f32", "-ctv", "f32"], folder)  # it leaves a log file where it runs
    text = output_of(common + ["-m", os.path.abspath(model), "--kl-divergence"], folder)
    return float(re.search(r"Mean\s+KLD:\s+([-0-9.e]+)", text).group(1))


def fastgen(args, model):
    text = output_of([args.tool, "perplexity", "-q", "-m", model, "-f", args.text, "-c", str(args.context), "--kl"])
    return float(re.search(r" kl ([-0-9.e]+)", text).group(1))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--perplexity", required=True, metavar="FILE", help="llama.cpp's llama-perplexity")
    parser.add_argument("--tool", default=os.path.join(ROOT, "build", "fastgen"))
    parser.add_argument("--text", required=True)
    parser.add_argument("--context", type=int, default=128)
    args = parser.parse_args()
    print("| file | fastgen | llama.cpp | fastgen / llama.cpp |\n|---|---|---|---|")
    for model in args.models:
        with tempfile.TemporaryDirectory() as folder:
            theirs = llama_cpp(args, model, folder)
        ours = fastgen(args, model)
        print("| %s | %.3g | %.3g | %.2f |" % (os.path.basename(model), ours, theirs, ours / theirs if theirs else 0), flush=True)


if __name__ == "__main__":
    main()
