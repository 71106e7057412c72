#!/usr/bin/env python3
"""Decode and prompt rates of transformers' continuous batching on models of our benchmarks' shapes, random weights in BF16, as JSON.

    python tests/bench_transformers.py --shape 1.1b --prompts 512,2048 --batches 1,8,32,128

Needs torch that sees a device; exit status 77 where there is none. --device cpu --layers 1 tries the script itself.
Prompts end where the first token comes; decoding counts from when every sequence has its first token to when the first of them ends."""
import argparse
import json
import sys

from make_model import SHAPES


def options():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--shape", choices=SHAPES, default="1.1b")
    p.add_argument("--layers", type=int)
    p.add_argument("--prompts", default="512")
    p.add_argument("--batches", default="1,8,32,128")
    p.add_argument("--tokens", type=int, default=64, help="decoded by each sequence")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--device", default="cuda")
    return p.parse_args()


def build(a, torch):
    from transformers import LlamaConfig, LlamaForCausalLM
    embd, layers, heads, kv_heads, head, ff, vocab, context = SHAPES[a.shape]
    config = LlamaConfig(hidden_size=embd, num_hidden_layers=a.layers or layers, num_attention_heads=heads, num_key_value_heads=kv_heads,
                         head_dim=head, intermediate_size=ff, vocab_size=vocab, max_position_embeddings=context,
                         attn_implementation="sdpa", torch_dtype=torch.bfloat16)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(a.device):
        model = LlamaForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    return model.eval(), vocab


def once(model, vocab, prompt, batch, tokens, seed):
    """Prompt tokens/s until the last first token, decoded tokens/s after it."""
    import random
    from transformers import GenerationConfig
    random.seed(seed)
    inputs = [[random.randrange(vocab) for _ in range(prompt)] for _ in range(batch)]
    config = GenerationConfig(max_new_tokens=tokens, do_sample=False, eos_token_id=-1, pad_token_id=0)
    outputs = list(model.generate_batch(inputs, generation_config=config, record_timestamps=True).values())
    if len(outputs) != batch or any(len(o.generated_tokens) != tokens for o in outputs):
        sys.exit(f"{len(outputs)} of {batch} sequences came: {[o.error for o in outputs if o.error][:1]}")
    start = min(o.created_time for o in outputs)
    begun = max(o.timestamps[0] for o in outputs)
    ended = min(o.timestamps[-1] for o in outputs)
    decoded = sum(sum(begun < t <= ended for t in o.timestamps) for o in outputs)
    return prompt * batch / (begun - start), decoded / (ended - begun) if ended > begun else 0


def main():
    a = options()
    try:
        import torch
        import transformers
    except ImportError as e:
        print(e, file=sys.stderr)
        return 77
    if a.device == "cuda" and not torch.cuda.is_available():
        print("torch sees no device", file=sys.stderr)
        return 77
    model, vocab = build(a, torch)
    results = []
    for prompt in map(int, a.prompts.split(",")):
        for batch in map(int, a.batches.split(",")):
            once(model, vocab, prompt, batch, 4, 0)
            runs = [once(model, vocab, prompt, batch, a.tokens, 1 + i) for i in range(a.rounds)]
            prompts, decodes = (sorted(r[i] for r in runs)[len(runs) // 2] for i in (0, 1))
            results.append({"prompt": prompt, "batch": batch, "pp_tok_s": prompts, "tok_s": decodes})
            print(f"prompt {prompt}, batch {batch}: {prompts:.1f}, {decodes:.1f} tokens/s", file=sys.stderr)
    print(json.dumps({"transformers": transformers.__version__, "torch": torch.__version__, "shape": a.shape, "results": results}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
