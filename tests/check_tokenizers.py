#!/usr/bin/env python3
"""Compares fastgen's tokenizers with Hugging Face `tokenizers` and with `sentencepiece` on random Unicode text.

    check_tokenizers.py [--count N] [--seed N] [--only WORD] [--header FILE] [--vocabs DIR]

Every string goes through every case. The byte-level BPE families have the normaliser and pre-tokenizer of the
tokenizer.json their models are published with, over a vocabulary that joins any two bytes, so that nearly every cut in
a wrong place shows. GPT-2 and DeepSeek Coder also have their real vocabularies, out of DIR, and SentencePiece that of
Llama 2, as it is and changed. Needs the packages tokenizers, sentencepiece, protobuf, numpy and gguf, and a C compiler
($CC or cc). Ends with "N passed, N failed".
"""
import argparse
import ctypes
import os
import random
import subprocess
import sys
import tempfile
import unicodedata

import gguf
import sentencepiece
from sentencepiece import sentencepiece_model_pb2
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

from make_unicode import cased_ranges, classes, runs

HERE = os.path.dirname(os.path.abspath(__file__))
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
NO_BOS = 1

DRIVER = r"""
#define FASTGEN_IMPLEMENTATION
#include "%s"

typedef struct check_vocab {
    fg__env env;
    fg__gguf *gguf;
    fg__vocab *vocab;
} check_vocab;

void *check_open(const char *path) {
    check_vocab *c = (check_vocab *)calloc(1, sizeof(*c));
    c->env = fg__env_make(NULL, NULL, NULL);
    if (fg__gguf_open(&c->env, path, NULL, 0, false, &c->gguf) == FG_OK &&
        fg__vocab_load(&c->env, c->gguf, &c->vocab) == FG_OK) return c;
    return NULL;
}

const char *check_error(void) { return fg_last_error(); }

long check_encode(const check_vocab *c, const char *text, size_t length, unsigned flags, int32_t *ids,
                  size_t capacity) {
    int32_t *found;
    size_t count;
    if (fg__vocab_encode(c->vocab, text, length, flags, &found, &count) != FG_OK) return -1;
    if (count <= capacity && count) memcpy(ids, found, count * sizeof(*ids));
    fg__free(&c->env, found);
    return (long)count;
}

long check_decode(const check_vocab *c, const int32_t *ids, size_t count, char *text, size_t capacity) {
    size_t i, length, total = 0;
    for (i = 0; i < count; i++) {
        const char *piece = fg__vocab_piece(c->vocab, ids[i], true, &length);
        if (total + length > capacity) return -1;
        memcpy(text + total, piece, length);
        total += length;
    }
    return (long)total;
}
"""


class Fastgen:
    """A vocabulary file opened by fastgen."""

    library = None

    @classmethod
    def build(cls, header, folder):
        source, output = os.path.join(folder, "driver.c"), os.path.join(folder, "driver.so")
        with open(source, "w", encoding="utf-8") as file:
            file.write(DRIVER % os.path.abspath(header))
        compiler = [os.environ.get("CC", "cc"), "-O2", "-w", "-shared", "-fPIC", "-DFG_NO_SIMD"]  # kernels take the longest
        subprocess.check_call(compiler + ["-o", output, source, "-lm", "-lpthread"])
        lib = cls.library = ctypes.CDLL(output)
        lib.check_open.restype = ctypes.c_void_p
        lib.check_open.argtypes = [ctypes.c_char_p]
        lib.check_error.restype = ctypes.c_char_p
        lib.check_encode.restype = lib.check_decode.restype = ctypes.c_long
        lib.check_encode.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_uint, ctypes.c_void_p,
                                     ctypes.c_size_t]
        lib.check_decode.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p,
                                     ctypes.c_size_t]

    def __init__(self, path):
        self.handle = self.library.check_open(path.encode())
        if not self.handle:
            raise RuntimeError("%s: %s" % (path, self.library.check_error().decode()))
        self.ids = (ctypes.c_int32 * 65536)()
        self.text = ctypes.create_string_buffer(1 << 20)

    def encode(self, text):
        data = text.encode()
        count = self.library.check_encode(self.handle, data, len(data), NO_BOS, self.ids, len(self.ids))
        assert 0 <= count <= len(self.ids)
        return self.ids[:count]

    def decode(self, ids):
        count = self.library.check_decode(self.handle, (ctypes.c_int32 * len(ids))(*ids), len(ids), self.text,
                                          len(self.text))
        assert count >= 0
        return self.text.raw[:count]


class Vocab:
    """Tokens, types, scores and merges of a GGUF file."""

    def __init__(self, path):
        fields = gguf.GGUFReader(path).fields if path else {}

        def items(key):
            field = fields.get("tokenizer.ggml." + key)
            return [field.parts[i] for i in field.data] if field else []

        self.tokens = [bytes(item).decode() for item in items("tokens")]
        self.types = [int(item[0]) for item in items("token_type")]
        self.scores = [float(item[0]) for item in items("scores")]
        self.merges = [bytes(item).decode() for item in items("merges")]

    @classmethod
    def of_pairs(cls):
        """All bytes and all pairs of bytes, joined in random order, and a special token."""
        vocab = cls(None)
        bytes_ = sorted(pre_tokenizers.ByteLevel.alphabet())
        pairs = [(a, b) for a in bytes_ for b in bytes_]
        random.Random(1).shuffle(pairs)
        vocab.tokens = bytes_ + [a + b for a, b in pairs] + ["<|endoftext|>"]
        vocab.types = [NORMAL] * (len(vocab.tokens) - 1) + [CONTROL]
        vocab.merges = [a + " " + b for a, b in pairs]
        return vocab

    def write(self, path, model, pre=None, settings=()):
        writer = gguf.GGUFWriter(path, "llama")
        writer.add_tokenizer_model(model)
        if pre:
            writer.add_tokenizer_pre(pre)
        writer.add_token_list(self.tokens)
        writer.add_token_types(self.types)
        if self.scores:
            writer.add_token_scores(self.scores)
        if self.merges:
            writer.add_token_merges(self.merges)
        for key, value in settings:
            writer.add_bool("tokenizer.ggml." + key, value)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.close()


# ---- Hugging Face tokenizers -----------------------------------------------------------------------------------------

def split(pattern):
    return pre_tokenizers.Split(Regex(pattern), "isolated")


def byte_level(use_regex):
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)


def sequence(*steps):
    return pre_tokenizers.Sequence(list(steps))


def llama3_pattern(digits):
    return (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + digits +
            r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def cased_pattern(behind, digits):
    upper, lower, lead = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]", r"[^\r\n\p{L}\p{N}]?"
    return (lead + upper + "*" + lower + "+" + behind + "|" + lead + upper + "+" + lower + "*" + behind + r"|\p{N}" + digits +
            r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def families():
    """name in tokenizer.ggml.pre: (pre-tokenizer, whether text is normalised to NFC, ignore_merges)"""
    digits = pre_tokenizers.Digits(individual_digits=True)
    cjk = split("[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+")
    cased = "".join(chr(first) + "-" + chr(last) for first, last in cased_ranges())
    starcoder = sequence(digits, byte_level(True))
    gpt2_pattern = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    return {
        "gpt-2": (byte_level(True), False, False),
        "mpt": (byte_level(True), True, False),
        "llama-bpe": (sequence(split(llama3_pattern("{1,3}")), byte_level(False)), False, True),
        "dbrx": (sequence(split(llama3_pattern("{1,3}")), byte_level(False)), False, False),
        "qwen2": (sequence(split(llama3_pattern("")), byte_level(False)), True, False),
        "qwen35": (sequence(split(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
                                  r"|\s*[\r\n]+|\s+(?!\S)|\s+"), byte_level(False)), True, False),
        "tekken": (sequence(split(cased_pattern("", "")), byte_level(False)), False, True),
        "gpt-4o": (sequence(split(cased_pattern("(?i:'s|'t|'re|'ve|'m|'ll|'d)?", "{1,3}")), byte_level(False)), False, False),
        "starcoder": (starcoder, False, False),
        "refact": (starcoder, False, False),
        "smollm": (starcoder, False, False),
        "command-r": (starcoder, True, False),
        "falcon": (sequence(pre_tokenizers.Punctuation(behavior="contiguous"), byte_level(True),
                            pre_tokenizers.Digits(individual_digits=False), split("[0-9][0-9][0-9]")), False, False),
        "deepseek-llm": (sequence(split("[\r\n]"), split(r"\s?[" + cased + "]+"),
                                  split("\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"),
                                  split(r"\s+$"), cjk, digits, byte_level(False)), False, False),
        "deepseek-coder": (sequence(split("[\r\n]"), split(r"\s?\p{L}+"), split(r"\s?\p{P}+"), cjk, digits,
                                    byte_level(False)), False, False),
        # no model's own: what llama.cpp does with files that name no pre-tokenizer
        "default": (sequence(split(r"[\p{P}\$\+<=>\^~\|]+"), split(gpt2_pattern), split(r"\p{N}+"),
                             split("[0-9][0-9][0-9]"), byte_level(False)), False, False),
    }


def hugging_face(vocab, pre_tokenizer, nfc, ignore_merges):
    ordinary = {token: i for i, token in enumerate(vocab.tokens) if vocab.types[i] == NORMAL}
    merges = [tuple(merge.split(" ")) for merge in vocab.merges]
    tokenizer = Tokenizer(models.BPE(vocab=ordinary, merges=merges, ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer = pre_tokenizer
    if nfc:
        tokenizer.normalizer = normalizers.NFC()
    added = {}
    for i, token in enumerate(vocab.tokens):
        if vocab.types[i] in (CONTROL, USER_DEFINED) and token != "[PAD%d]" % i:
            tokenizer.add_tokens([AddedToken(token, normalized=False, special=vocab.types[i] == CONTROL)])
            added[tokenizer.token_to_id(token)] = i  # ids past the ordinary ones are given in order of adding
    return lambda texts: [[added.get(i, i) for i in encoding.ids]
                          for encoding in tokenizer.encode_batch(texts, add_special_tokens=False)]


# ---- sentencepiece ---------------------------------------------------------------------------------------------------

def sentence_piece(vocab, squeeze):
    model = sentencepiece_model_pb2.ModelProto()
    for token, kind, score in zip(vocab.tokens, vocab.types, vocab.scores):
        piece = model.pieces.add()
        piece.piece, piece.score, piece.type = token, score, kind
    model.trainer_spec.model_type = 2  # BPE
    model.trainer_spec.byte_fallback = BYTE in vocab.types
    model.trainer_spec.vocab_size = len(vocab.tokens)
    model.normalizer_spec.name = "identity"
    model.normalizer_spec.add_dummy_prefix = True
    model.normalizer_spec.escape_whitespaces = True
    model.normalizer_spec.remove_extra_whitespaces = squeeze
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.SerializeToString())
    return lambda texts: [processor.encode(text) for text in texts]


# ---- random text -----------------------------------------------------------------------------------------------------

WORDS = """the of and to in is was he for it with as his on be at by had not are but from or have an they which one you
were her all she there would their we him been has when who will more no if out so said what up its about into than them
can only other new some could time these two may then do first any my now such like our over man me even most made after
also did many before must through back years where much your way well down should because each just those people how too
little state good very make world still own see men work long get here between both life being under never day same
another know while last might us great old year off come since against go came right used take three""".split()
CODE = ["def f(x):\n    return x+1\n", "#include <stdio.h>\n", "int main(void) {\n\treturn 0;\n}", "for (i=0;i<n;i++)",
        "a[i]->b.c", "x == y && z != w", "// TODO: no", "/* c */", "http://a.b/c?d=e&f=%20", "\t\t", "    ", "\r\n",
        "{\"key\": [1, 2.5e-3, null]}", "<div class=\"a\">", "$HOME/.bashrc", "print(f'{x!r:>10}')", "0x7fff_ffff",
        "SELECT * FROM t WHERE a='b';", "\\alpha^{2}_{ij}", "```python\n", "__init__", "camelCaseWord", "A_B-C.D",
        "1,234.56"]
CONTRACTIONS = ["'s", "'S", "'t", "'T", "'re", "'RE", "'Re", "'rE", "'ve", "'VE", "'m", "'M", "'ll", "'LL", "'lL", "'d",
                "'D", "'\u017f", "'\u017fa", "'l", "'r", "'v", "\u2019s", "''s", "'x", "'", "' s", "'re's"]
EMOJI = ["\U0001f600", "\U0001f636\u200d\U0001f32b\ufe0f", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\u2705",
         "\U0001f1eb\U0001f1f7", "\U0001f44d\U0001f3fd", "1\ufe0f\u20e3", "\u00a9", "\u2122", "\u2764\ufe0f"]
ACCENTS = [chr(c) for c in (0x300, 0x301, 0x302, 0x303, 0x308, 0x30c, 0x323, 0x327, 0x328)]
SPACES = [chr(c) for c in range(0x3001) if chr(c).isspace()] + ["\u200b", "\u180e", "\u2060", "\ufeff"]
BLOCKS = [(0x20, 0x7f), (0x80, 0x250), (0x250, 0x300), (0x370, 0x530), (0x530, 0x600), (0x600, 0x700), (0x900, 0xe00),
          (0xe00, 0x1000), (0x10a0, 0x1400), (0x1780, 0x1880), (0x1d00, 0x2000), (0x2000, 0x2c00), (0x2c00, 0x3000),
          (0x3000, 0x3400), (0x4e00, 0x4f00), (0x9f00, 0xa000), (0xa000, 0xabff), (0xac00, 0xad00), (0xd700, 0xd800),
          (0xf900, 0xfb00), (0xfb00, 0x10000), (0x10000, 0x10800), (0x10800, 0x11000), (0x11000, 0x12000),
          (0x16800, 0x17000), (0x1d000, 0x1d800), (0x1e000, 0x1f000), (0x1f000, 0x20000), (0x2f800, 0x2fa20),
          (0xe0000, 0xe0200)]
CODES = [c for c in range(0x110000) if not 0xd800 <= c < 0xe000]


class Text:
    """Random strings, the same for the same seed and packages."""

    def __init__(self, seed, names):
        self.random = random.Random(seed)
        self.names = names
        self.marks = [chr(c) for c in CODES if unicodedata.combining(chr(c))]
        self.numbers = [chr(c) for c in CODES if unicodedata.category(chr(c))[0] == "N"]
        self.punctuation = [chr(c) for c in CODES if unicodedata.category(chr(c))[0] in "PS"]
        self.composed = [chr(c) for c in CODES if not 0xac00 <= c < 0xd7a4 and
                         unicodedata.normalize("NFD", chr(c)) != chr(c)]
        edges = set()  # the first and last character of each run of each class, and those beside them
        for _, _, members in classes():
            for start, _ in runs(lambda c: c in members):
                edges.update((max(start - 2, 0), max(start - 1, 0), start, start + 1))
        self.edges = [chr(c) for c in sorted(edges) if not 0xd800 <= c < 0xe000]

    def some(self, items, most):
        return "".join(self.random.choice(items) for _ in range(self.random.randint(1, most)))

    def block(self):
        first, last = self.random.choice(BLOCKS)
        return "".join(chr(self.random.randrange(first, last)) for _ in range(self.random.randint(1, 12)))

    def hangul(self):
        ranges = [(0x1100, 0x1113), (0x1161, 0x1176), (0x11a7, 0x11c4), (0xac00, 0xd7a4)]
        chosen = self.random.choices(ranges, k=self.random.randint(1, 6))
        return "".join(chr(self.random.randrange(first, last)) for first, last in chosen)

    def part(self):
        pick = self.random.randrange(21)
        if pick < 4:
            words = [self.random.choice(WORDS) for _ in range(self.random.randint(1, 4))]
            words = [self.random.choice((str, str, str.title, str.upper))(word) for word in words]
            return self.random.choice(("", " ")) + " ".join(words)
        if pick < 6:
            return self.block()
        if pick == 6:
            return "".join(map(chr, self.random.choices(CODES, k=self.random.randint(1, 4))))
        if pick == 7:
            return self.some(self.marks, 5)
        if pick == 8:
            return self.some(self.composed, 3)
        if pick == 9:
            accents = "".join(self.some("aceinosuyAEO", 1) + self.some(ACCENTS, 3) for _ in range(3))
            return self.random.choice((accents, unicodedata.normalize("NFD", self.some(self.composed, 3)))) + self.some(
                self.marks, 2)
        if pick == 10:
            return self.some(SPACES, 5)
        if pick == 11:
            return self.some([" ", " ", "\n", "\t", "\r"], 6)
        if pick == 12:
            return self.some("0123456789", 8)
        if pick == 13:
            return self.some(self.numbers, 5)
        if pick == 14:
            return self.some(self.punctuation, 4)
        if pick == 15:
            return self.some("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~", 5)
        if pick == 16:
            return self.random.choice(("I", "we", "", "\u4e00", "9")) + self.random.choice(CONTRACTIONS)
        if pick == 17:
            return self.random.choice(CODE)
        if pick == 18:
            return self.random.choice((self.some(EMOJI, 3), self.hangul(), self.some([chr(c) for c in range(32)], 3)))
        if pick == 19:
            return self.some(self.edges, 4)
        repeated = self.random.choice("ax \n\u00e9") * 40
        return self.random.choice((self.random.choice(self.names), repeated, "\u2581", ""))

    def string(self):
        return "".join(self.part() for _ in range(self.random.randint(1, 7)))


# ---- the comparison --------------------------------------------------------------------------------------------------

def compare(name, ours, reference, texts, exact):
    """True when all ids agree and, for families that keep the text as it is, decode to the text again."""
    bad = 0
    for start in range(0, len(texts), 1000):
        batch = texts[start:start + 1000]
        for text, expected in zip(batch, reference(batch)):
            ids = ours.encode(text)
            if ids == expected and (not exact or ours.decode(ids) == text.encode()):
                continue
            bad += 1
            if bad <= 5:
                print("  %r\n    expected %s\n    got      %s" % (text, expected, ids))
                print("    which is %r" % ours.decode(ids))
    print("%-22s %d strings, %d differences" % (name, len(texts), bad), flush=True)
    return bad == 0


def bpe_cases(folder, vocabs):
    """(name, file, function of the reference, whether ids decode to the very text)"""
    table, pairs = families(), Vocab.of_pairs()
    for name in ("gpt-2", "deepseek-coder"):
        path = os.path.join(vocabs, "ggml-vocab-%s.gguf" % name)
        yield name + " (file)", path, hugging_face(Vocab(path), *table[name]), True
    words = Vocab(os.path.join(vocabs, "ggml-vocab-gpt-2.gguf"))
    path = os.path.join(folder, "words.gguf")
    words.write(path, "gpt2", "llama-bpe")
    yield "llama-bpe, whole words", path, hugging_face(words, *table["llama-bpe"]), True
    for name, family in table.items():
        path = os.path.join(folder, name + ".gguf")
        pairs.write(path, "gpt2", name)
        yield name, path, hugging_face(pairs, *family), not family[1]


def spm_cases(folder, vocabs):
    plain = os.path.join(vocabs, "ggml-vocab-llama-spm.gguf")
    vocab = Vocab(plain)
    yield "llama-spm (file)", plain, sentence_piece(vocab, False), False
    path = os.path.join(folder, "squeeze.gguf")
    vocab.write(path, "llama", settings=[("remove_extra_whitespaces", True)])
    yield "spm, spaces squeezed", path, sentence_piece(vocab, True), False
    chosen = random.Random(1)
    vocab.types = [UNUSED if kind == NORMAL and len(token) > 1 and chosen.random() < 0.1 else kind
                   for kind, token in zip(vocab.types, vocab.tokens)]
    path = os.path.join(folder, "unused.gguf")
    vocab.write(path, "llama")
    yield "spm, unused tokens", path, sentence_piece(vocab, False), False
    keep = [i for i, kind in enumerate(vocab.types) if kind != BYTE]
    vocab.tokens, vocab.types, vocab.scores = ([items[i] for i in keep]
                                               for items in (vocab.tokens, vocab.types, vocab.scores))
    path = os.path.join(folder, "no-bytes.gguf")
    vocab.write(path, "llama")
    yield "spm, no bytes", path, sentence_piece(vocab, False), False


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=100000, help="strings (default: 100000)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="only the cases whose name contains this")
    parser.add_argument("--header", default=os.path.join(HERE, "..", "fastgen.h"))
    parser.add_argument("--vocabs", default=os.path.join(HERE, "..", "..", "shared", "tokenizers"))
    args = parser.parse_args()
    if not os.path.exists(os.path.join(args.vocabs, "ggml-vocab-gpt-2.gguf")):
        print("no vocabularies in %s\n0 passed, 0 failed, 1 skipped" % args.vocabs)
        return 0
    names = ["<|endoftext|>", "<\uff5cend\u2581of\u2581sentence\uff5c>", "<pad>", "<|EOT|>", "\u00fc"]
    generator = Text(args.seed, names)
    texts = [generator.string() for _ in range(args.count)]
    passed = failed = 0
    with tempfile.TemporaryDirectory() as folder:
        Fastgen.build(args.header, folder)
        for cases in (bpe_cases, spm_cases):
            for name, path, reference, exact in cases(folder, args.vocabs):
                if args.only not in name:
                    continue
                if compare(name, Fastgen(path), reference, texts, exact):
                    passed += 1
                else:
                    failed += 1
    print("%d passed, %d failed" % (passed, failed))
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
