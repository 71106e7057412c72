#!/usr/bin/env python3
"""Logits of fastgen.h against Hugging Face transformers, on tiny models with pseudo-random weights.

    check_logits.py            builds every model in transformers (float32), writes it as GGUF the way llama.cpp's converter
                               does, and compares the logits of every position; also with quantised weights and KV caches,
                               and with the goldens in tests/golden
    check_logits.py --write    writes those goldens, and tests/golden/cases.h, which tests/test_logits.c reads
    check_logits.py WORD ...   only cases whose name contains one of the words

Needs torch, transformers and gguf (tests/requirements.txt). The last line is "N passed, N failed".
"""
import argparse
import math
import os
import pathlib
import platform
import subprocess
import sys
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import gguf
import numpy as np
import torch
import transformers
from gguf.quants import dequantize, quantize

ROOT = pathlib.Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "tests" / "golden"
N_TOKENS = 40
MAX_ERROR = 1e-4  # of a logit, with F32 weights
LEAST_GAP = 0.02  # of a router's logits

# Members a case does not name. `rope`: transformers' rope_parameters without rope_theta; `full_layers`: the first so many
# layers see everything, the others the window; `rot`: dimensions of a head that turn, 0: all; `local_theta`: of layers with
# a window, 0: the file does not say; `wide`: q.k is divided by the square root of embd / heads; `experts`, of which a token
# takes `used`, each `ff` wide; 0: none; `shared`: width of the one for every token. Of recurrent layers: `state_heads` value heads,
# `state_keys` key heads, `state_dim` dimensions of each; every so manieth layer, `period`, is not recurrent, 0: the file does not say.
DEFAULTS = dict(arch="llama", vocab=64, embd=64, layers=2, heads=4, kv_heads=4, head_dim=16, ff=96, context=128, eps=1e-5,
                theta=10000.0, rope={}, window=0, full_layers=0, tied=False, bias=False, rot=0, local_theta=0.0, wide=False,
                experts=0, used=0, shared=0, state_heads=0, state_keys=0, state_dim=0, period=0, golden=True, n_tokens=N_TOKENS, budgets=(0, 7))


def long_rope(pairs, original):
    return dict(rope_type="longrope", short_factor=[1 + i / 8 for i in range(pairs)], long_factor=[2.0 + i for i in range(pairs)],
                original_max_position_embeddings=original)


CASES = {
    "llama": dict(layers=3),
    "llama_gqa": dict(kv_heads=2, theta=500000.0),
    "llama_mqa_odd": dict(vocab=61, embd=72, heads=6, kv_heads=1, head_dim=12, ff=100),
    "llama_linear": dict(rope=dict(rope_type="linear", factor=4.0)),
    "llama_llama3": dict(kv_heads=2, rope=dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                               original_max_position_embeddings=32)),
    "llama_yarn": dict(head_dim=32, context=64, theta=1000.0, rope=dict(
        rope_type="yarn", factor=4.0, original_max_position_embeddings=16)),
    "llama_yarn_factor": dict(head_dim=32, context=64, theta=1000.0, rope=dict(
        rope_type="yarn", factor=4.0, original_max_position_embeddings=16, attention_factor=0.8, beta_slow=0.5,
        beta_fast=1.25)),
    "llama_tied": dict(tied=True),
    "llama_bias": dict(kv_heads=2, bias=True),
    "llama_head_dim": dict(head_dim=32, kv_heads=2),
    "mistral_window": dict(kv_heads=2, window=12),
    "qwen2": dict(arch="qwen2", kv_heads=2, eps=1e-6, theta=1000000.0),
    "qwen2_tied_yarn": dict(arch="qwen2", kv_heads=2, context=64, tied=True, theta=1000.0, rope=dict(
        rope_type="yarn", factor=4.0, original_max_position_embeddings=16)),
    "qwen2_window": dict(arch="qwen2", layers=3, kv_heads=2, window=12, full_layers=1),
    "qwen3": dict(arch="qwen3", head_dim=32, kv_heads=2, eps=1e-6, theta=1000000.0),
    "qwen3_tied": dict(arch="qwen3", head_dim=16, kv_heads=4, tied=True),
    "gemma": dict(arch="gemma", kv_heads=1, head_dim=32, eps=1e-6, tied=True),
    "gemma3": dict(arch="gemma3", layers=7, kv_heads=2, head_dim=32, eps=1e-6, theta=1000000.0, window=12, tied=True),
    "gemma3_linear": dict(arch="gemma3", layers=6, kv_heads=1, eps=1e-6, theta=1000.0, window=20, local_theta=50.0, tied=True,
                          rope=dict(rope_type="linear", factor=8.0)),
    "gemma3_27b": dict(arch="gemma3", vocab=32, embd=32, layers=62, heads=2, kv_heads=1, head_dim=32, ff=32, eps=1e-6, theta=1000000.0,
                       window=12, tied=True, wide=True, golden=False),
    "phi3": dict(arch="phi3"),
    "phi3_window": dict(arch="phi3", kv_heads=2, window=12),
    "phi3_long": dict(arch="phi3", kv_heads=2, head_dim=16, rot=12, rope=long_rope(6, 32)),
    "phi3_short": dict(arch="phi3", kv_heads=2, context=64, tied=True, rope=long_rope(8, 64)),
    "smollm3": dict(arch="smollm3", layers=4, kv_heads=2, theta=5000000.0),
    # Of mixtures of experts numbers for which no token is within LEAST_GAP of other experts, to which roundings could tip it.
    "mixtral_7": dict(arch="llama", kv_heads=2, theta=1000000.0, experts=4, used=2, n_tokens=32),
    "qwen3moe_16": dict(arch="qwen3moe", vocab=63, kv_heads=2, head_dim=32, ff=48, eps=1e-6, theta=1000000.0, experts=8, used=3, n_tokens=32),
    "gpt-oss_25": dict(arch="gpt-oss", kv_heads=2, head_dim=32, ff=64, context=128, theta=1000.0, window=12, experts=4, used=2, n_tokens=32, rope=dict(
        rope_type="yarn", factor=8.0, beta_fast=32.0, beta_slow=1.0, truncate=False, original_max_position_embeddings=16)),
    "qwen35": dict(arch="qwen35", layers=4, kv_heads=2, head_dim=32, rot=8, eps=1e-6, theta=1000000.0, state_heads=4, state_keys=2, state_dim=16),
    "qwen35_tied": dict(arch="qwen35", vocab=61, kv_heads=1, head_dim=32, rot=16, eps=1e-6, tied=True, state_heads=3, state_keys=1, state_dim=20, period=2),
    "qwen35moe_57": dict(arch="qwen35moe", kv_heads=2, head_dim=32, rot=8, ff=48, eps=1e-6, experts=8, used=3, shared=40, n_tokens=32,
                        state_heads=4, state_keys=2, state_dim=16, period=2),
    "qwen3next_3": dict(arch="qwen3next", kv_heads=2, head_dim=32, rot=8, ff=48, eps=1e-6, experts=4, used=2, shared=40, n_tokens=32,
                        state_heads=4, state_keys=2, state_dim=16, period=2),
    # Longer than a block, a pass and a window; shapes of real heads. Too large for goldens.
    "long_llama": dict(embd=128, heads=2, kv_heads=1, head_dim=64, ff=352, vocab=300, context=512, golden=False, n_tokens=330),
    "long_mistral": dict(embd=128, heads=4, kv_heads=2, head_dim=32, window=100, context=512, golden=False, n_tokens=330),
    "long_qwen3": dict(arch="qwen3", embd=96, heads=2, kv_heads=2, head_dim=128, context=512, golden=False, n_tokens=330),
    "long_gemma3": dict(arch="gemma3", embd=96, layers=7, heads=4, kv_heads=1, head_dim=256, context=512, window=100, tied=True, golden=False,
                        n_tokens=330),
    "long_qwen35": dict(arch="qwen35", embd=96, layers=4, heads=2, kv_heads=1, head_dim=64, rot=16, context=512, golden=False, n_tokens=330,
                        state_heads=4, state_keys=2, state_dim=128),
    "long_qwen3moe": dict(arch="qwen3moe", embd=96, heads=4, kv_heads=1, head_dim=32, ff=64, context=512, experts=32, used=8, golden=False,
                          n_tokens=330),
}

# Weight types: every one the gguf package can expand. Their matrices need rows of 256.
TYPES = ["F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4"]
TYPED = dict(embd=256, heads=4, kv_heads=2, head_dim=64, ff=256, vocab=64, golden=False)
# Where a block's float16 scales lie, and how large each is beside the first (so that minima centre the weights).
SCALES = {"Q2_K": {80: 1, 82: 1.5}, "Q3_K": {108: 1}, "Q4_K": {0: 1, 2: 7.5}, "Q5_K": {0: 1, 2: 15.5}, "Q6_K": {208: 1},
          "IQ4_NL": {0: 1}, "IQ4_XS": {0: 1}}


def case(name, **more):
    return dict(DEFAULTS, name=name, **dict(CASES.get(name, {}), **more))


# ---- pseudo-random weights, the same in tests/test_logits.c

MASK = (1 << 64) - 1


def name_seed(text):
    """FNV-1a, 64 bits."""
    seed = 0xCBF29CE484222325
    for byte in text.encode():
        seed = ((seed ^ byte) * 0x100000001B3) & MASK
    return seed


def random_bits(seed, count):
    """`count` numbers of splitmix64 from `seed`."""
    with np.errstate(over="ignore"):
        z = np.uint64(seed) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def random_weight(case_name, name, shape):
    """Uniform numbers; all scales are powers of two, so that every compiler and machine makes the same bits."""
    bits = random_bits(name_seed(case_name + "/" + name), math.prod(shape))
    unit = (bits >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-23) - np.float32(1)
    if name.endswith("norm.weight"):
        unit = np.float32(1) + unit * np.float32(0.25)
    elif name.endswith("ssm_a"):
        unit = unit * np.float32(0.25) - np.float32(0.3125)  # some forget soon, some late
    elif name.endswith(".bias") or name == "token_embd.weight":
        unit = unit * np.float32(0.5)
    else:
        unit = unit * np.float32(0.25)
    return unit.reshape(shape)


def token_ids(c):
    return (random_bits(name_seed(c["name"] + "/ids"), c["n_tokens"]) % np.uint64(c["vocab"])).astype(np.int32)


# ---- the model in transformers

def hf_model(c):
    kinds = {"llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
             "mistral": (transformers.MistralConfig, transformers.MistralForCausalLM),
             "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
             "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
             "mixtral": (transformers.MixtralConfig, transformers.MixtralForCausalLM),
             "qwen3moe": (transformers.Qwen3MoeConfig, transformers.Qwen3MoeForCausalLM),
             "qwen35": (transformers.Qwen3_5TextConfig, transformers.Qwen3_5ForCausalLM),
             "qwen35moe": (transformers.Qwen3_5MoeTextConfig, transformers.Qwen3_5MoeForCausalLM),
             "qwen3next": (transformers.Qwen3NextConfig, transformers.Qwen3NextForCausalLM),
             "gpt-oss": (transformers.GptOssConfig, transformers.GptOssForCausalLM),
             "gemma": (transformers.GemmaConfig, transformers.GemmaForCausalLM),
             "gemma3": (transformers.Gemma3TextConfig, transformers.Gemma3ForCausalLM),
             "phi3": (transformers.Phi3Config, transformers.Phi3ForCausalLM),
             "smollm3": (transformers.SmolLM3Config, transformers.SmolLM3ForCausalLM)}
    rope = dict(dict(rope_type="default"), rope_theta=c["theta"], **c["rope"])
    kind = c["arch"]
    if kind == "llama" and (c["window"] or c["experts"]):
        kind = "mixtral" if c["experts"] else "mistral"
    more = {}
    if kind == "llama":
        more = dict(attention_bias=c["bias"], mlp_bias=c["bias"])
    if kind == "mistral":
        more = dict(sliding_window=c["window"])
    if kind == "mixtral":
        more = dict(num_local_experts=c["experts"], num_experts_per_tok=c["used"], sliding_window=None)
    if kind == "qwen3moe":
        more = dict(num_experts=c["experts"], num_experts_per_tok=c["used"], moe_intermediate_size=c["ff"], norm_topk_prob=True)
    if c["state_heads"]:
        period = c["period"] or 4
        more = dict(linear_num_value_heads=c["state_heads"], linear_num_key_heads=c["state_keys"], linear_key_head_dim=c["state_dim"],
                    linear_value_head_dim=c["state_dim"], layer_types=["linear_attention" if (i + 1) % period else "full_attention" for i in range(c["layers"])])
        rope["partial_rotary_factor"] = c["rot"] / c["head_dim"]
        if c["experts"]:
            more |= dict(num_experts=c["experts"], num_experts_per_tok=c["used"], moe_intermediate_size=c["ff"], shared_expert_intermediate_size=c["shared"])
    if kind == "gpt-oss":
        more = dict(num_local_experts=c["experts"], num_experts_per_tok=c["used"], sliding_window=c["window"] or c["context"],
                    attention_bias=True)
    if kind in ("qwen2", "qwen3"):
        more = dict(use_sliding_window=c["window"] > 0, sliding_window=c["window"] or None, max_window_layers=c["full_layers"])
    if kind == "gemma3":
        more = dict(query_pre_attn_scalar=c["embd"] // c["heads"] if c["wide"] else c["head_dim"], sliding_window=c["window"] or c["context"])
        rope = dict(full_attention=rope, sliding_attention=dict(rope_type="default", rope_theta=c["local_theta"] or 10000.0))
    if kind == "phi3":
        more = dict(sliding_window=c["window"] or None, pad_token_id=0)
        if c["rope"]:
            more["original_max_position_embeddings"] = c["rope"]["original_max_position_embeddings"]
        if c["rot"]:
            rope["partial_rotary_factor"] = c["rot"] / c["head_dim"]
    if kind == "smollm3":
        more = dict(pad_token_id=0)
    if kind not in ("qwen2", "phi3", "smollm3"):
        more["head_dim"] = c["head_dim"]
    elif c["head_dim"] * c["heads"] != c["embd"]:
        raise ValueError(f"{kind} has no head_dim of its own")
    config_class, model_class = kinds[kind]
    config = config_class(
        vocab_size=c["vocab"], hidden_size=c["embd"], intermediate_size=c["ff"], num_hidden_layers=c["layers"],
        num_attention_heads=c["heads"], num_key_value_heads=c["kv_heads"], max_position_embeddings=c["context"],
        rms_norm_eps=c["eps"], tie_word_embeddings=c["tied"], bos_token_id=1, eos_token_id=2,
        rope_parameters=rope, **more)
    config._attn_implementation = "eager"
    return model_class(config).float().eval()


def permute(weight, n_head):
    """Rows of q and k of llama models: from halves to pairs, as the converter stores them."""
    return weight.reshape(n_head, 2, weight.shape[0] // n_head // 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def unpermute(weight, n_head):
    return weight.reshape(n_head, weight.shape[0] // n_head // 2, 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def permuted_heads(c, name):
    """Heads of a tensor whose rows the converter permutes, else 0."""
    if c["arch"] not in ("llama", "smollm3"):
        return 0
    return c["heads"] if ".attn_q." in name else c["kv_heads"] if ".attn_k." in name else 0


def norm_offset(c, name):
    """What a file's norms are larger by: Gemma's add 1, which the converter does for good."""
    adds = c["arch"].startswith("gemma") or (c["state_heads"] and not name.endswith("ssm_norm.weight"))
    return int(adds and name.endswith("norm.weight"))


def state_order(c, name):
    """The axis and the order by which the converter sorts value heads in a tensor of a recurrent layer: from those of a key head together to
    the first of each, then the second; None: it leaves them."""
    heads, keys, dim = c["state_heads"], c["state_keys"], c["state_dim"]
    if not heads or c["arch"] == "qwen3next":
        return None
    order = np.arange(heads).reshape(keys, heads // keys).T.ravel()
    wide = (order[:, None] * dim + np.arange(dim)).ravel()
    last = name.split(".", 2)[-1]
    if last in ("attn_qkv.weight", "ssm_conv1d.weight"):
        return 0, np.concatenate([np.arange(2 * keys * dim), 2 * keys * dim + wide])
    if last in ("ssm_alpha.weight", "ssm_beta.weight", "ssm_a", "ssm_dt.bias"):
        return 0, order
    return {"attn_gate.weight": (0, wide), "ssm_out.weight": (1, wide)}.get(last)


def to_file(c, name, weight):
    """A parameter of transformers as the converter writes it."""
    if name.endswith("ssm_a"):
        weight = -np.exp(weight)
    if name.endswith("ssm_conv1d.weight") or name.endswith("_shexp.weight") and weight.shape[0] == 1:
        weight = weight.squeeze()
    if state_order(c, name):
        axis, order = state_order(c, name)
        weight = weight.take(order, axis)
    heads = permuted_heads(c, name)
    return (permute(weight, heads) if heads else weight) + np.float32(norm_offset(c, name))


def from_file(c, name, weight):
    """The other way; the caller gives it the parameter's shape."""
    weight = weight - np.float32(norm_offset(c, name))
    heads = permuted_heads(c, name)
    if heads:
        weight = unpermute(weight, heads)
    if state_order(c, name):
        axis, order = state_order(c, name)
        weight = weight.take(np.argsort(order), axis)
    return np.log(-weight) if name.endswith("ssm_a") else weight


def join_qkvz(c, qkv, z):
    """Qwen3-Next's matrix of a recurrent layer: for each key head its q, k, v and z."""
    keys, dim = c["state_keys"], c["state_dim"]
    q, k, v = np.split(qkv, [keys * dim, 2 * keys * dim])
    return np.concatenate([part.reshape(keys, -1, qkv.shape[1]) for part in (q, k, v, z)], axis=1).reshape(-1, qkv.shape[1])


def part_qkvz(c, weight):
    keys, dim, each = c["state_keys"], c["state_dim"], c["state_heads"] // c["state_keys"]
    parts = np.split(weight.reshape(keys, -1, weight.shape[1]), np.cumsum([dim, dim, each * dim]), axis=1)
    q, k, v, z = (part.reshape(-1, weight.shape[1]) for part in parts)
    return np.concatenate([q, k, v]), z


def gguf_names(c, model):
    """transformers' name of each parameter to GGUF's; of what lies behind each other in one, gate and up of experts, to both."""
    arch = gguf.MODEL_ARCH[c["arch"].upper().replace("-", "_")]
    table = gguf.get_tensor_name_map(arch, c["layers"])
    names = {}
    for name, _ in model.named_parameters():
        layer, _, last = name.removeprefix("model.layers.").partition(".")
        if last.startswith("mlp.experts."):
            what, bias, _ = last.removeprefix("mlp.experts.").partition("_proj_bias")
            names[name] = [f"blk.{layer}.ffn_{part}_exps.{'bias' if bias else 'weight'}" for part in what.removesuffix("_proj").split("_")]
        elif last == "self_attn.sinks":
            names[name] = [f"blk.{layer}.attn_sinks.weight"]
        elif last == "linear_attn.dt_bias":
            names[name] = [f"blk.{layer}.ssm_dt.bias"]
        elif last == "linear_attn.in_proj_qkvz.weight":
            names[name] = [f"blk.{layer}.attn_qkv.weight", f"blk.{layer}.attn_gate.weight"]
        else:
            names[name] = [table.get_name(name, try_suffixes=(".weight", ".bias"))]
        if names[name][0] is None:
            raise ValueError(f"{name}: no GGUF name")
    return names


def file_shape(c, name, shape):
    """The shape in the file of a parameter that is one tensor there."""
    if name.endswith("ssm_conv1d.weight"):
        return [shape[0], shape[2]]
    return shape[1:] if name.endswith("ffn_gate_inp_shexp.weight") else shape


def fill(c, model, make):
    """Sets every parameter from make(gguf name, shape), which works in GGUF's layout."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parts, shape = gguf_names(c, model)[name], list(parameter.shape)
            to, turned = parts[0], c["arch"] == "gpt-oss" and "_exps.weight" in parts[0]
            if turned:
                shape[1:] = shape[:0:-1]
            if name.endswith("in_proj_qkvz.weight"):
                z = c["state_heads"] * c["state_dim"]
                weight = join_qkvz(c, make(to, (shape[0] - z, shape[1])), make(parts[1], (z, shape[1])))
            elif len(parts) > 1:
                shape[1] //= len(parts)
                made = [make(part, tuple(shape)) for part in parts]
                weight = np.stack(made, axis=2).reshape(shape[0], -1, *shape[2:]) if c["arch"] == "gpt-oss" else np.concatenate(made, axis=1)
            else:
                weight = from_file(c, to, make(to, tuple(file_shape(c, to, shape))))
            if turned:
                weight = weight.swapaxes(1, 2)
            parameter.copy_(torch.from_numpy(np.ascontiguousarray(weight)).reshape(parameter.shape))


def round_bf16(x):
    return x.bfloat16().float()


def in_8_bits(x):
    """Whole numbers up to 127 [blocks][32], and the scale of each 32 [blocks][1]."""
    blocks = x.reshape(-1, 32)
    most = blocks.abs().amax(1, keepdim=True).clamp(min=1e-30)
    return torch.round(blocks * (127 / most)), most / 127


def round_8_bits(x):
    numbers, scale = in_8_bits(x)
    return (numbers * scale).reshape(x.shape)


def round_sums(x):
    """What Q2_K's minimums multiply on x86: sums of 16 rounded to 8 bits as whole numbers up to 32767, each 256 with a scale of their own; here
    spread over the 16."""
    numbers, scale = in_8_bits(x)
    sums = (numbers.reshape(-1, 2, 16).sum(2) * scale).reshape(-1, 16)
    most = sums.abs().amax(1, keepdim=True).clamp(min=1e-30)
    return (torch.round(sums * (32767 / most)) * (most / 32767 / 16)).repeat_interleave(16, 1).reshape(x.shape)


def q2_k_minimums(blocks, shape):
    """What Q2_K subtracts from each weight: bytes are 16 scales and minimums of 4 bits, 64 of quants, two halves d and dmin."""
    blocks = np.asarray(blocks).reshape(-1, 84)
    dmin = blocks[:, 82:84].copy().view(np.float16).astype(np.float32)
    return np.repeat((blocks[:, :16] >> 4) * dmin, 16, 1).reshape(shape)


def hf_logits(model, ids, rounding=None, minimums=None):
    """[tokens][vocabulary]; `rounding` is applied to what each matrix multiplies; `minimums`, a model of these, is what round_sums is applied for."""
    hooks, sums = [], {}
    linear = [layer for layer in model.modules() if isinstance(layer, torch.nn.Linear)]
    least = {layer: other.weight for layer, other in zip(model.modules(), minimums.modules()) if layer in linear} if minimums else {}
    for layer in linear if minimums else []:
        hooks.append(layer.register_forward_pre_hook(lambda layer, inputs: sums.update({layer: round_sums(inputs[0])})))
    for layer in linear if rounding else []:
        hooks.append(layer.register_forward_pre_hook(lambda _, inputs: (rounding(inputs[0]),)))
    for layer in linear if minimums else []:
        hooks.append(layer.register_forward_hook(
            lambda layer, inputs, out: out + torch.nn.functional.linear(inputs[0] - sums[layer], least[layer])))
    try:
        return plain_logits(model, ids)
    finally:
        for hook in hooks:
            hook.remove()


def plain_logits(model, ids):
    with torch.no_grad():
        return model(torch.from_numpy(ids.astype(np.int64))[None]).logits[0].numpy()


def least_gap(c, model, ids):
    """How far the last expert that a token takes is from the first that it does not, in logits of the router; the least of all tokens."""
    gaps = []

    def keep(router, inputs, _):
        logits = torch.nn.functional.linear(inputs[0].reshape(-1, router.weight.shape[1]), router.weight, getattr(router, "bias", None))
        best = logits.sort(-1, descending=True).values
        gaps.append((best[:, c["used"] - 1] - best[:, c["used"]]).min().item())

    hooks = [(getattr(layer.mlp, "gate", None) or layer.mlp.router).register_forward_hook(keep) for layer in model.model.layers]
    plain_logits(model, ids)
    for hook in hooks:
        hook.remove()
    return min(gaps)


# ---- the model as GGUF

def llama3_factors(c):
    """rope_freqs.weight of Llama 3.1's scaling, as the converter writes it."""
    rope, factors = c["rope"], []
    low = rope["original_max_position_embeddings"] / rope["low_freq_factor"]
    high = rope["original_max_position_embeddings"] / rope["high_freq_factor"]
    for i in range(0, c["head_dim"], 2):
        length = 2 * math.pi * c["theta"] ** (i / c["head_dim"])
        if length < high:
            factors.append(1.0)
        elif length > low:
            factors.append(rope["factor"])
        else:
            smooth = (rope["original_max_position_embeddings"] / length - rope["low_freq_factor"]) / (
                rope["high_freq_factor"] - rope["low_freq_factor"])
            factors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(factors, dtype=np.float32)


def add_rope(writer, c):
    rope = c["rope"]
    if rope.get("rope_type") == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    elif rope.get("rope_type") == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        if "attention_factor" in rope:  # GGUF's multiplies YaRN's own 1 + ln(factor)/10
            writer.add_rope_scaling_attn_factors(rope["attention_factor"] / (1 + 0.1 * math.log(rope["factor"])))
        if "beta_fast" in rope:
            writer.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
            writer.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])
    elif rope.get("rope_type") == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_factors(c))
    elif rope.get("rope_type") == "longrope":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        writer.add_rope_scaling_attn_factors(long_rope_magnitude(c))
        writer.add_tensor("rope_factors_long.weight", np.array(rope["long_factor"], dtype=np.float32))
        writer.add_tensor("rope_factors_short.weight", np.array(rope["short_factor"], dtype=np.float32))
    if c["local_theta"]:
        writer.add_float32(f"{c['arch']}.rope.freq_base_swa", c["local_theta"])


def long_rope_magnitude(c):
    """LongRoPE's, as the converter writes it."""
    original = c["rope"]["original_max_position_embeddings"]
    factor = c["context"] / original
    return math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0


def write_gguf(path, c, model, raw={}):
    """`raw`: GGUF name to (type, bytes as rows), in place of the parameter's floats."""
    writer = gguf.GGUFWriter(path, c["arch"])
    writer.add_name(c["name"])
    writer.add_block_count(c["layers"])
    writer.add_context_length(c["context"])
    writer.add_embedding_length(c["embd"])
    writer.add_feed_forward_length(c["ff"])
    writer.add_head_count(c["heads"])
    writer.add_head_count_kv(c["kv_heads"])
    writer.add_rope_freq_base(c["theta"])
    writer.add_layer_norm_rms_eps(c["eps"])
    writer.add_vocab_size(c["vocab"])
    writer.add_rope_dimension_count(c["rot"] or c["head_dim"])
    if c["head_dim"] * c["heads"] != c["embd"]:
        writer.add_key_length(c["head_dim"])
        writer.add_value_length(c["head_dim"])
    if c["experts"]:
        writer.add_expert_count(c["experts"])
        writer.add_expert_used_count(c["used"])
        writer.add_expert_feed_forward_length(c["ff"])
    if c["shared"]:
        writer.add_expert_shared_feed_forward_length(c["shared"])
    if c["state_heads"]:
        writer.add_ssm_conv_kernel(4)
        writer.add_ssm_state_size(c["state_dim"])
        writer.add_ssm_group_count(c["state_keys"])
        writer.add_ssm_time_step_rank(c["state_heads"])
        writer.add_ssm_inner_size(c["state_heads"] * c["state_dim"])
    if c["period"]:
        writer.add_uint32(f"{c['arch']}.full_attention_interval", c["period"])
    if c["window"]:
        writer.add_sliding_window(c["window"])
    if c["full_layers"]:
        writer.add_sliding_window_pattern([i >= c["full_layers"] for i in range(c["layers"])])
    add_rope(writer, c)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(["<unk>", "<s>", "</s>"] + [f"t{i}" for i in range(3, c["vocab"])])
    writer.add_token_scores([-float(i) for i in range(c["vocab"])])
    writer.add_token_types([2, 3, 3] + [1] * (c["vocab"] - 3))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    for name, parameter in model.named_parameters():
        parts = gguf_names(c, model)[name]
        for i, to in enumerate(parts):
            if to in raw:
                writer.add_tensor(to, raw[to][1], raw_dtype=raw[to][0])
                continue
            weight = parameter.detach().numpy()
            if c["arch"] == "gpt-oss" and "_exps.weight" in to:
                weight = weight.swapaxes(1, 2)
            if name.endswith("in_proj_qkvz.weight"):
                weight = part_qkvz(c, weight)[i]
            elif len(parts) > 1:
                weight = weight[:, i::2] if c["arch"] == "gpt-oss" else np.split(weight, len(parts), axis=1)[i]
            writer.add_tensor(to, np.ascontiguousarray(to_file(c, to, weight)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


# ---- quantised weights

def random_blocks(kind, seed, shape):
    """Random blocks of a type the gguf package expands but does not make: random bytes, and scales that give weights of the
    usual size."""
    per_block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    blocks = (random_bits(seed, math.prod(shape) // per_block * block_bytes) >> np.uint64(56)).astype(np.uint8)
    blocks = blocks.reshape(-1, block_bytes)

    def set_scales(d):
        for offset, factor in SCALES[kind.name].items():
            blocks[:, offset:offset + 2] = (d * factor).astype(np.float16).reshape(-1, 1).view(np.uint8)

    set_scales(np.full(len(blocks), 1.0 / 64))
    size = np.sqrt(np.mean(dequantize(blocks, kind) ** 2, axis=1)) * 64
    set_scales(0.14 / size * (0.75 + 0.5 * np.random.default_rng(seed).random(len(blocks))))
    return blocks.reshape(shape[0], -1)


def quantised(kind, case_name, name, shape):
    weight = random_weight(case_name, name, shape)
    if kind.name == "F16":
        return weight.astype(np.float16)
    if kind.name in SCALES:
        return random_blocks(kind, name_seed(case_name + "/" + name), shape)
    return quantize(weight, kind)


def expanded(kind, rows):
    return rows.astype(np.float32) if kind.name == "F16" else dequantize(rows, kind)


# ---- running and comparing

class Checks:
    passed = failed = 0

    def check(self, ok, what):
        self.passed += bool(ok)
        self.failed += not ok
        print(f"  {'ok' if ok else 'FAILED'}  {what}", flush=True)


def engine_logits(tool, folder, model_path, ids, vocab, **options):
    """Runs build/logits; None and its message when it fails."""
    ids.astype("<i4").tofile(folder / "ids.i32")
    command = [tool, model_path, folder / "ids.i32", folder / "out.f32"] + [f"{k}={v}" for k, v in options.items()]
    run = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if run.returncode != 0:
        return None, f"exit status {run.returncode}: {run.stderr.strip()}"
    return np.fromfile(folder / "out.f32", dtype="<f4").reshape(len(ids), vocab), ""


def cpu_paths(tool, folder, model_path, ids, vocab):
    """The default path, and every path by name that this machine offers."""
    offered = [{}]
    for path in ("scalar", "avx2", "avx512", "amx", "neon"):
        rows, why = engine_logits(tool, folder, model_path, ids[:1], vocab, cpu_path=path)
        if rows is not None:
            offered.append(dict(cpu_path=path))
        elif path == "scalar":
            raise SystemExit(f"the scalar path does not run: {why}")
    return offered


def compare(checks, what, got, why, expected, limit):
    if got is None:
        checks.check(False, f"{what}: {why}")
        return
    error = np.abs(got - expected).max()
    checks.check(error <= limit, f"{what}: {error:.2e} (at most {limit:.0e})")


def relative(got, expected):
    """Root mean square of the error over that of the logits."""
    return np.sqrt(np.mean((got - expected) ** 2) / np.mean(expected**2))


def label(c, options):
    return " ".join([c["name"]] + [f"{k}={v}" for k, v in options.items()])


def check_case(checks, tool, folder, c):
    path = folder / "model.gguf"
    model = hf_model(c)
    fill(c, model, lambda name, shape: random_weight(c["name"], name, shape))
    write_gguf(path, c, model)
    ids = token_ids(c)
    expected = hf_logits(model, ids)
    for paths in cpu_paths(tool, folder, path, ids, c["vocab"]):
        for budget in c["budgets"]:
            options = dict(paths, **(dict(token_budget=budget, block_tokens=8) if budget else {}))
            got, why = engine_logits(tool, folder, path, ids, c["vocab"], **options)
            compare(checks, label(c, options), got, why, expected, MAX_ERROR)
    if c["rope"] or c["window"]:  # must matter here, or nothing was tested
        plain = hf_model(dict(c, rope={}, window=0, local_theta=0.0))
        plain.load_state_dict(model.state_dict())
        moved = np.abs(hf_logits(plain, ids) - expected).max()
        checks.check(moved > 0.1, f"{c['name']}: the logits feel the rope scaling or the window: {moved:.2e}")
    if c["golden"] and c["experts"]:
        gap = least_gap(c, model, ids)
        checks.check(gap > LEAST_GAP, f"{c['name']}: experts are chosen by {gap:.2e} (more than {LEAST_GAP})")
    if c["golden"]:
        golden = np.fromfile(GOLDEN / (c["name"] + ".f32"), dtype="<f4").reshape(expected.shape)
        compare(checks, label(c, {}) + " golden", golden, "", expected, 2e-5)


def check_type(checks, tool, folder, type_name):
    """All matrices of one type, against transformers on the expanded weights."""
    kind = gguf.GGMLQuantizationType[type_name]
    c = case("type_" + type_name, **TYPED)
    model, raw, path = hf_model(c), {}, folder / "model.gguf"

    def make(name, shape):
        if len(shape) == 1:
            return random_weight(c["name"], name, shape)
        raw[name] = (kind, quantised(kind, c["name"], name, shape))
        return expanded(kind, raw[name][1]).reshape(shape)

    fill(c, model, make)
    write_gguf(path, c, model, raw)
    minimums = None
    if type_name == "Q2_K" and platform.machine() in ("x86_64", "AMD64"):
        minimums = hf_model(c)
        fill(c, minimums, lambda name, shape: q2_k_minimums(raw[name][1], shape) if name in raw else np.zeros(shape, np.float32))
    ids = token_ids(c)
    exact = hf_logits(model, ids)
    paths = list(cpu_paths(tool, folder, path, ids, c["vocab"]))
    best = "amx" if {"cpu_path": "amx"} in paths else None
    for options in paths:
        got, why = engine_logits(tool, folder, path, ids, c["vocab"], **options)
        what = label(c, options)
        if got is None:
            checks.check(False, f"{what}: {why}")
            continue
        error = relative(got, exact)
        if error <= EXACT_ERROR or type_name == "F16" or options.get("cpu_path") == "scalar":
            limit = SPLIT_ERROR if type_name == "F16" and options.get("cpu_path", best) == "amx" else EXACT_ERROR
            checks.check(error <= limit, f"{what}: {error:.2e} (at most {limit:.0e})")
        elif type_name == "BF16" and error <= INTEGER_ERROR:  # as integers of 12 bits: several times closer than activations in BF16
            checks.check(True, f"{what}: {error:.2e} (at most {INTEGER_ERROR:.0e})")
        else:  # fast paths may round activations
            check_rounded(checks, tool, folder, type_name, c, model, options, minimums)


def check_rounded(checks, tool, folder, type_name, c, model, options, minimums):
    """A path that rounds activations against transformers with the same rounding, in the first of PROMPTS prompts whose median
    token agrees: where a rounding is tipped early, which floats differ in on every CPU, all tokens after it may not."""
    limit = ROUNDED_ERROR.get(type_name, 1e-5)
    for i in range(PROMPTS):
        ids = token_ids(dict(c, name=f"{c['name']}/{i}") if i else c)
        rounded = hf_logits(model, ids, round_bf16 if type_name == "BF16" else round_8_bits, minimums)
        got, _ = engine_logits(tool, folder, folder / "model.gguf", ids, c["vocab"], **options)
        tokens = np.sort([relative(*rows) for rows in zip(got, rounded)])
        middle, worst = tokens[len(tokens) // 2], tokens[-1]
        if middle <= limit or worst > WORST_ERROR:
            break
    checks.check(middle <= limit and worst <= WORST_ERROR, f"{label(c, options)}, activations rounded there too, prompt {i + 1}: {middle:.2e} "
                 f"of the median token (at most {limit:.0e}), {worst:.2e} of the worst ({WORST_ERROR:.0e})")


EXACT_ERROR = 1e-5
SPLIT_ERROR = 5e-5  # weights and activations as sums of two bfloat16, 16 bits of each
INTEGER_ERROR = 3e-3
# Of the median token. The last bit of a float can tip a rounding, which then shows in that token and some after it; with
# 8 bits this is rare, with bfloat16 it is common, and so with round_sums, where it is worth 1/65534 of the largest sum.
ROUNDED_ERROR = {"BF16": 3e-3, "Q2_K": 5e-5}
WORST_ERROR = 5e-2  # of any token
PROMPTS = 3
KV_ERROR = {"F16": 2e-3, "BF16": 1.5e-2, "Q8_0": 4e-2}


def check_kv(checks, tool, folder):
    """KV caches of fewer bits."""
    c = case("long_llama")
    model, path = hf_model(c), folder / "model.gguf"
    fill(c, model, lambda name, shape: random_weight(c["name"], name, shape))
    write_gguf(path, c, model)
    ids = token_ids(c)
    expected = hf_logits(model, ids)
    for kv_type, limit in KV_ERROR.items():
        for options in cpu_paths(tool, folder, path, ids, c["vocab"]):
            got, why = engine_logits(tool, folder, path, ids, c["vocab"], kv_type=kv_type, **options)
            error = relative(got, expected) if got is not None else math.inf
            checks.check(error <= limit, f"kv {label(c, dict(options, kv_type=kv_type))}: {error:.2e} (at most {limit:.0e}) {why}")


# ---- goldens

def write_goldens():
    """cases.h: a row of C for each case; NAME.f32: its logits, [n_tokens][vocab]."""
    lines = ["/* Written by tests/check_logits.py --write: name, architecture, tokens, vocabulary, width, layers, heads, KV heads,",
             "   head width, FFN width, context, eps, theta, window, layers without it, tied, bias; rope: type, original context,",
             "   factor, the file's attention factor, Llama 3's low and high frequency factor or YaRN's slow and fast beta,",
             "   dimensions (0: the head's), theta of layers with a window (0: not in the file); experts, those of a token, width of the",
             "   shared one; recurrent layers: value heads, key heads, dimensions, every so manieth is not one (0: not in the file). */"]
    for name in CASES:
        c = case(name)
        if not c["golden"]:
            continue
        model = hf_model(c)
        fill(c, model, lambda to, shape: random_weight(c["name"], to, shape))
        hf_logits(model, token_ids(c)).astype("<f4").tofile(GOLDEN / (name + ".f32"))
        rope = c["rope"]
        attention = rope.get("attention_factor", 0)
        if attention:
            attention /= 1 + 0.1 * math.log(rope["factor"])
        if rope.get("rope_type") == "longrope":
            attention = long_rope_magnitude(c)
        numbers = [c[k] for k in ("n_tokens", "vocab", "embd", "layers", "heads", "kv_heads", "head_dim", "ff", "context")]
        floats = [f"{c['eps']!r}f", f"{c['theta']!r}f"]
        flags = [c["window"], c["full_layers"], int(c["tied"]), int(c["bias"])]
        scaling = [f"{float(v):.9g}" for v in (
            rope.get("factor", 0), attention, rope.get("low_freq_factor", rope.get("beta_slow", 0)),
            rope.get("high_freq_factor", rope.get("beta_fast", 0)))]
        scaling = [(v if "." in v or "e" in v else v + ".0") + "f" for v in scaling]
        row = [f'"{name}"', f'"{c["arch"]}"'] + numbers + floats + flags + [
            f'"{rope.get("rope_type", "")}"', rope.get("original_max_position_embeddings", 0)] + scaling + [c["rot"], f"{c['local_theta']!r}f"] + [
                c[k] for k in ("experts", "used", "shared", "state_heads", "state_keys", "state_dim", "period")]
        lines.append("{" + ", ".join(str(item) for item in row) + "},")
    (GOLDEN / "cases.h").write_text("\n".join(lines) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the goldens")
    parser.add_argument("words", nargs="*", help="only cases whose name contains one of these")
    options = parser.parse_args()
    torch.set_num_threads(2)
    if options.write:
        write_goldens()
        return 0
    subprocess.run(["sh", ROOT / "build.sh", "logits"], check=True)
    tool = ROOT / os.environ.get("BUILD", "build") / "logits"

    def wanted(name):
        return not options.words or any(word in name for word in options.words)

    checks = Checks()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        for name in filter(wanted, CASES):
            check_case(checks, tool, folder, case(name))
        for name in TYPES:
            if wanted("type_" + name):
                check_type(checks, tool, folder, name)
        if wanted("kv"):
            check_kv(checks, tool, folder)
    print(f"{checks.passed} passed, {checks.failed} failed")
    return 1 if checks.failed or not checks.passed else 0


if __name__ == "__main__":
    sys.exit(main())
