#!/usr/bin/env python3
"""Writes a GGUF model of a real shape with random weights, for benchmarks: no training, no download.

    python tests/make_model.py --shape 1.1b --type Q4_0 build/models/1.1b-q4_0.gguf
    python tests/make_model.py --shape 40m --type Q8_0 build/models/40m-q8_0.gguf
    python tests/make_model.py --shape 8b --type Q4_K --layers 4 build/models/8b-4l-q4_k.gguf
    python tests/make_model.py --shape 8b --type BF16 --repeat build/models/8b-bf16.gguf
    python tests/make_model.py --shape 1.1b --type F16 --trained BF16 build/models/1.1b-f16.gguf
    python tests/make_model.py --shape 30b-a3b --type Q4_K_M --layers 12 --repeat build/models/moe.gguf
    python tests/make_model.py --shape qwen35-4b --type Q4_K_M --layers 8 --repeat build/models/qwen35.gguf
    python tests/make_model.py --shape oss-20b --type MXFP4 --layers 8 --repeat build/models/oss.gguf

Any program that reads such GGUF models loads the result. Weights are random blocks of the type, scaled so that activations
stay in range; "Q4_K_M" mixes Q4_K and Q6_K as files of that name do. Needs numpy and the gguf package from PyPI.
"""
import argparse
import functools
import math
import os
import sys

import gguf
import numpy as np

# name: embedding, layers, heads, KV heads, head size, feed-forward, vocabulary, context
SHAPES = {
    "40m": (512, 8, 8, 4, 64, 1408, 32000, 4096),
    "1.1b": (2048, 22, 32, 4, 64, 5632, 32000, 32768),
    "8b": (4096, 32, 32, 8, 128, 14336, 128256, 131072),
    "30b-a3b": (2048, 48, 32, 4, 128, 768, 151936, 40960),
    "oss-20b": (2880, 24, 64, 8, 64, 2880, 201088, 131072),
    "qwen35-4b": (2560, 32, 16, 4, 256, 9216, 248320, 262144),
    "qwen35-35b-a3b": (2048, 40, 16, 2, 256, 512, 248320, 262144),
}
# name: architecture, experts of each layer, how many a token takes; the feed-forward is the width of one.
EXPERTS = {"30b-a3b": ("qwen3moe", 128, 8), "oss-20b": ("gpt-oss", 32, 4), "qwen35-35b-a3b": ("qwen35moe", 256, 8), "qwen35-4b": ("qwen35", 0, 0)}
# name: value heads, key heads and dimensions of the recurrent layers, which are all but every fourth
STATES = {"qwen35-4b": (32, 16, 128), "qwen35-35b-a3b": (32, 16, 128)}

# For each block type: bytes of a block, elements, and (offset, target) of its half-precision scales. The target is the
# scale's size relative to a weight's: a block of random bits then has weights of about the wanted standard deviation.
BLOCKS = {
    "Q4_0": (18, 32, [(0, 1 / 4.6)]),
    "Q4_1": (20, 32, [(0, 1 / 4.6), (2, -7.5 / 4.6)]),
    "Q5_0": (22, 32, [(0, 1 / 9.2)]),
    "Q5_1": (24, 32, [(0, 1 / 9.2), (2, -15.5 / 9.2)]),
    "Q8_0": (34, 32, [(0, 1 / 73.9)]),
    "Q2_K": (84, 256, [(80, 1 / 10.0), (82, 1 / 10.0)]),
    "Q3_K": (110, 256, [(108, 1 / 42.0)]),
    "Q4_K": (144, 256, [(0, 1 / 170.0), (2, 1 / 22.0)]),
    "Q5_K": (176, 256, [(0, 1 / 340.0), (2, 1 / 22.0)]),
    "Q6_K": (210, 256, [(208, 1 / 1360.0)]),
    "IQ4_NL": (18, 32, [(0, 1 / 73.0)]),
    "IQ4_XS": (136, 256, [(0, 1 / 1360.0)]),
}


def random_blocks(rng, name, rows, columns, deviation, trained="F32"):
    """rows x columns of random weights of about this standard deviation, in the type's block format."""
    if name in ("F32", "F16", "BF16"):
        values = rng.standard_normal((rows, columns), dtype=np.float32) * np.float32(deviation)
        if trained == "BF16":
            values.view(np.uint32)[:] &= np.uint32(0xFFFF0000)
        return gguf.quants.quantize(values, getattr(gguf.GGMLQuantizationType, name))
    if name == "MXFP4":  # a block's scale is a power of two, its values up to 12 halves
        blocks = rng.integers(0, 256, (rows * columns // 32, 17), dtype=np.uint8)
        blocks[:, 0] = 127 + round(math.log2(deviation / 2.9)) + rng.integers(-1, 2, len(blocks))
        return blocks.reshape(rows, columns // 32 * 17)
    size, elements, scales = BLOCKS[name]
    blocks = rng.integers(0, 256, (rows * columns // elements, size), dtype=np.uint8)
    for offset, factor in scales:
        blocks[:, offset:offset + 2].view(np.float16)[:, 0] = np.float16(deviation * factor) * rng.uniform(0.8, 1.2, len(blocks))
    return blocks.reshape(rows, columns // elements * size)


@functools.lru_cache(maxsize=None)
def repeated(rng, name, rows, columns, trained):
    """The same, of 256 rows over and over: an array that all matrices of this type and shape share."""
    some = random_blocks(rng, name, 256, columns, columns ** -0.5, trained)
    return np.tile(some, (-(-rows // 256), 1))[:rows]


def vocabulary(n):
    """A SentencePiece vocabulary of n made-up pieces, with bytes and the three special tokens."""
    T = gguf.TokenType
    tokens = [b"<unk>", b"<s>", b"</s>"] + [b"<0x%02X>" % i for i in range(256)]
    types = [T.UNKNOWN, T.CONTROL, T.CONTROL] + [T.BYTE] * 256
    letters = "etaoinshrdlucmfwypvbgkjqxz"
    words = ["\u2581"] + list(letters) + list(letters.upper()) + list("0123456789.,;:!?'\"()-")
    i = 0
    while len(tokens) + len(words) < n:
        a, b, c, d = i % 26, i // 26 % 26, i // 676 % 26, i // 17576
        words.append(("\u2581" if i % 3 else "") + letters[a] + letters[b] + letters[c] + (letters[d - 1] if d else ""))
        i += 1
    tokens += [w.encode() for w in words]
    types += [T.NORMAL] * len(words)
    scores = [0.0] * 259 + [-float(i) for i in range(len(words))]
    return tokens[:n], scores[:n], types[:n]


def tensor_type(kind, name, layer, layers):
    if kind == "MXFP4":
        return kind if name.startswith("ffn") else "Q8_0"
    if kind != "Q4_K_M":
        return kind
    more = layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2
    return "Q6_K" if name == "output" or (more and name in ("attn_v", "ffn_down")) else "Q4_K"


def progress(done, total):
    width = 40 * done // total
    sys.stderr.write("\r[%s%s] %3d%%" % ("#" * width, "." * (40 - width), 100 * done // total))
    sys.stderr.write("\n" if done == total else "")
    sys.stderr.flush()


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("out")
    p.add_argument("--shape", choices=SHAPES, default="1.1b")
    p.add_argument("--type", choices=["F32", "F16", "BF16", "Q4_K_M", "MXFP4", *BLOCKS], default="Q8_0",
                   help="of gpt-oss MXFP4 is its experts' type, all else is Q8_0")
    p.add_argument("--trained", choices=["F32", "BF16"], default="F32", help="BF16: F16 and F32 hold what BF16 can hold, as most models' files do")
    p.add_argument("--layers", type=int, help="fewer layers than the shape has")
    p.add_argument("--repeat", action="store_true", help="the same few rows everywhere: 16 GB are there in seconds, and take as long to run")
    p.add_argument("--seed", type=int, default=1)
    a = p.parse_args()
    embd, layers, heads, kv_heads, head, ff, vocab, context = SHAPES[a.shape]
    layers = a.layers or layers
    rng = np.random.default_rng(a.seed)
    os.makedirs(os.path.dirname(os.path.abspath(a.out)), exist_ok=True)
    arch, experts, used = EXPERTS.get(a.shape, ("llama", 0, 0))
    oss = arch == "gpt-oss"
    w = gguf.GGUFWriter(a.out, arch, use_temp_file=not a.repeat)
    w.add_name("random " + a.shape)
    w.add_context_length(context)
    w.add_embedding_length(embd)
    w.add_block_count(layers)
    w.add_feed_forward_length(ff)
    w.add_head_count(heads)
    w.add_head_count_kv(kv_heads)
    state_heads, state_keys, state_dim = STATES.get(a.shape, (0, 0, 0))
    w.add_rope_dimension_count(head // 4 if state_heads else head)
    if state_heads:
        w.add_rope_dimension_sections([11, 11, 10, 0])
        w.add_key_length(head)
        w.add_value_length(head)
        w.add_ssm_conv_kernel(4)
        w.add_ssm_state_size(state_dim)
        w.add_ssm_group_count(state_keys)
        w.add_ssm_time_step_rank(state_heads)
        w.add_ssm_inner_size(state_heads * state_dim)
        if experts:
            w.add_expert_shared_feed_forward_length(ff)
    elif experts:
        w.add_key_length(head)
        w.add_value_length(head)
    if experts:
        w.add_expert_count(experts)
        w.add_expert_used_count(used)
        w.add_expert_feed_forward_length(ff)
    if oss:
        w.add_sliding_window(128)
        w.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        w.add_rope_scaling_factor(32.0)
        w.add_rope_scaling_orig_ctx_len(4096)
    w.add_rope_freq_base(10000.0)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_vocab_size(vocab)
    tokens, scores, types = vocabulary(vocab)
    w.add_tokenizer_model("llama")
    w.add_token_list(tokens)
    w.add_token_scores(scores)
    w.add_token_types(types)
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)
    w.add_unk_token_id(0)

    def matrix(name, rows, columns, layer=-1, short="", kind=None, matrices=1):
        kind = kind or tensor_type(a.type, short or name.split(".")[0], layer, layers)
        make = repeated if a.repeat else functools.partial(random_blocks, deviation=columns ** -0.5)
        data = make(rng, kind, rows * matrices, columns, trained=a.trained)
        if matrices > 1:
            data = data.reshape(matrices, rows, -1)
        w.add_tensor(name, data, raw_dtype=getattr(gguf.GGMLQuantizationType, kind))

    def ones(name, n):
        w.add_tensor(name, np.ones(n, dtype=np.float32))

    def state(blk, i):
        """A recurrent layer in place of attention."""
        wide = state_heads * state_dim
        channels = wide + 2 * state_keys * state_dim
        for short, rows, columns in (("attn_qkv", channels, embd), ("attn_gate", wide, embd), ("ssm_alpha", state_heads, embd),
                                     ("ssm_beta", state_heads, embd), ("ssm_out", embd, wide)):
            matrix(blk + short + ".weight", rows, columns, i, short)
        matrix(blk + "ssm_conv1d.weight", channels, 4, i, kind="F32")
        ones(blk + "ssm_norm.weight", state_dim)
        w.add_tensor(blk + "ssm_dt.bias", np.zeros(state_heads, dtype=np.float32))
        w.add_tensor(blk + "ssm_a", np.full(state_heads, -0.1, dtype=np.float32))

    matrix("token_embd.weight", vocab, embd)
    for i in range(layers):
        blk = "blk.%d." % i
        ones(blk + "attn_norm.weight", embd)
        ones(blk + ("post_attention_norm" if oss or state_heads else "ffn_norm") + ".weight", embd)
        recurrent = state_heads and (i + 1) % 4
        if recurrent:
            state(blk, i)
        for short, rows, columns in () if recurrent else (("attn_q", heads * head * (2 if state_heads else 1), embd), ("attn_k", kv_heads * head, embd),
                                                          ("attn_v", kv_heads * head, embd), ("attn_output", embd, heads * head)):
            matrix(blk + short + ".weight", rows, columns, i, short)
        for short, rows, columns in (("ffn_gate", ff, embd), ("ffn_up", ff, embd), ("ffn_down", embd, ff)):
            matrix(blk + short + ("_exps" if experts else "") + ".weight", rows, columns, i, short, matrices=experts or 1)
        if experts:
            matrix(blk + "ffn_gate_inp.weight", experts, embd, i, kind="F32")
        if experts and state_heads:
            w.add_tensor(blk + "ffn_gate_inp_shexp.weight", np.zeros(embd, dtype=np.float32))
            for short, rows, columns in (("ffn_gate_shexp", ff, embd), ("ffn_up_shexp", ff, embd), ("ffn_down_shexp", embd, ff)):
                matrix(blk + short + ".weight", rows, columns, i, short)
        if arch == "qwen3moe" or state_heads and not recurrent:
            ones(blk + "attn_q_norm.weight", head)
            ones(blk + "attn_k_norm.weight", head)
        if oss:
            for short, shape in (("attn_sinks.weight", heads), ("attn_q.bias", heads * head), ("attn_k.bias", kv_heads * head),
                                 ("attn_v.bias", kv_heads * head), ("attn_output.bias", embd), ("ffn_gate_inp.bias", experts),
                                 ("ffn_gate_exps.bias", (experts, ff)), ("ffn_up_exps.bias", (experts, ff)), ("ffn_down_exps.bias", (experts, embd))):
                w.add_tensor(blk + short, np.zeros(shape, dtype=np.float32))
        progress(i + 1, layers)
    ones("output_norm.weight", embd)
    matrix("output.weight", vocab, embd)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


if __name__ == "__main__":
    main()
