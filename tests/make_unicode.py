#!/usr/bin/env python3
"""Writes the section >>unicode of fastgen.h: the character classes and normalisation tables that tokenizers need.

    make_unicode.py                    prints the section
    make_unicode.py --check FILE       says whether FILE (fastgen.h) holds exactly that section

The tables are read out of Hugging Face's `tokenizers` (PyPI), code point by code point, because its parts follow
different versions of Unicode and a tokenizer must split text the way it was split when the model was trained:
regexes (Oniguruma), Digits (Rust's char::is_numeric), Punctuation (the crate unicode_categories) and NFC (a normaliser
of its own). Python's unicodedata only gives the values of combining classes and the pairs characters are made of.
"""
import argparse
import sys
import unicodedata

from tokenizers import Regex, __version__, normalizers, pre_tokenizers

CODES = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
NFC, NFD = normalizers.NFC(), normalizers.NFD()

# The letters of DeepSeek LLM's tokenizer.json: letters with case, listed one by one there.
CASED = """
41-5A 61-7A B5 C0-D6 D8-F6 F8-1BA 1BC-1BF 1C4-293 295-2AF 370-373 376-377 37B-37D 37F 386 388-38A 38C 38E-3A1 3A3-3F5
3F7-481 48A-52F 531-556 10A0-10C5 13A0-13F5 13F8-13FD 1C90-1CBA 1CBD-1CBF 1D00-1D2B 1D6B-1D77 1D79-1D9A 1E00-1F15
1F18-1F1D 1F20-1F45 1F48-1F4D 1F50-1F57 1F59 1F5B 1F5D 1F5F-1F7D 1F80-1FB4 1FB6-1FBC 1FBE 1FC2-1FC4 1FC6-1FCC
1FD0-1FD3 1FD6-1FDB 1FE0-1FEC 1FF2-1FF4 1FF6-1FFC 2102 2107 210A-2113 2115 2119-211D 2124 2126 2128 212A-212D
212F-2134 2139 213C-213F 2145-2149 214E 2183-2184 2C00-2C7B 2C7E-2CE4 2CEB-2CEE 2CF2-2CF3 A640-A66D A680-A69B
A722-A76F A771-A787 A78B-A78E AB70-ABBF FB00-FB06 FB13-FB17 FF21-FF3A FF41-FF5A 10400-1044F 104B0-104D3 104D8-104FB
10C80-10CB2 10CC0-10CF2 118A0-118DF 1E900-1E943
"""


def cased_ranges():
    for item in CASED.split():
        first, _, last = item.partition("-")
        yield int(first, 16), int(last or first, 16)


def matched(pattern):
    """The code points a one-character regex matches."""
    split = pre_tokenizers.Split(Regex(pattern), "removed")
    found = set()
    for i in range(0, len(CODES), 4096):
        block = CODES[i:i + 4096]
        left = set("".join(text for text, _ in split.pre_tokenize_str("".join(map(chr, block)))))
        found.update(c for c in block if chr(c) not in left)
    return found


def isolated(pre_tokenizer):
    """The code points that a pre-tokenizer cuts out of a word."""
    return {c for c in CODES if len(pre_tokenizer.pre_tokenize_str("x" + chr(c) + "x")) > 1}


def classes():
    """(name, comment, set of code points) for bit 0, 1, ..."""
    cased = {c for first, last in cased_ranges() for c in range(first, last + 1)}
    digits = pre_tokenizers.Digits(individual_digits=True)
    punctuation = pre_tokenizers.Punctuation(behavior="isolated")
    return [
        ("LETTER", r"\p{L}", matched(r"\p{L}")),
        ("NUMBER", r"\p{N}", matched(r"\p{N}")),
        ("PUNCT", r"\p{P}", matched(r"\p{P}")),
        ("SPACE", r"\s", matched(r"\s")),
        ("DIGIT", "what Digits splits: \\p{N} of a newer Unicode", isolated(digits)),
        ("OLD_PUNCT", "what Punctuation splits: \\p{P} of an older Unicode, and all of ASCII's", isolated(punctuation)),
        ("CASED", "the letters listed by DeepSeek LLM", cased),
        ("UPPER", r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", matched(r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]")),
        ("LOWER", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]", matched(r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]")),
    ]


def runs(value_of):
    """[(first code point, value)] of every run of equal values; surrogates never occur and take the value before."""
    out = []
    for c in CODES:
        if not out or out[-1][1] != value_of(c):
            out.append((c, value_of(c)))
    return out


def reordered(text):
    return NFC.normalize_str(text) != text


def combining_class(c):
    """c's canonical combining class, 0 where the normaliser does not know c."""
    value = unicodedata.combining(chr(c))
    below, above = "\u0334", "\u0345"  # classes 1 and 240
    known = reordered("x" + chr(c) + below) if value > 1 else reordered("x" + above + chr(c))
    return value if value and known else 0


def decompositions():
    """[(composed, first, second or 0)] in order of `composed`, without the Hangul syllables, which are computed."""
    out = []
    for c in CODES:
        if NFD.normalize_str(chr(c)) != chr(c) and not 0xAC00 <= c <= 0xD7A3:
            parts = [int(part, 16) for part in unicodedata.decomposition(chr(c)).split()]
            assert NFD.normalize_str(chr(c)) == "".join(NFD.normalize_str(chr(p)) for p in parts)
            out.append((c, parts[0], parts[1] if len(parts) > 1 else 0))
    return out


def array(declaration, items):
    lines, line = [], "   "
    for item in items:
        if len(line) + len(item) + 2 > 118:
            lines.append(line)
            line = "   "
        line += " " + item + ","
    lines.append(line.rstrip(","))
    return "%s = {\n%s\n};\n" % (declaration, "\n".join(lines))


def section():
    table = classes()
    bits = {c: 0 for c in CODES}
    for bit, (_, _, members) in enumerate(table):
        for c in members:
            bits[c] |= 1 << bit
    pairs = decompositions()
    composable = [i for i, (c, _, second) in enumerate(pairs) if second and NFC.normalize_str(chr(c)) == chr(c)]
    composable.sort(key=lambda i: pairs[i][1:])
    rule = "=" * 96
    out = "/* %s\n   >>unicode  character classes and composition tables, written by tests/make_unicode.py\n" % rule
    out += "   %s */\n\n/* Classes of characters as Hugging Face tokenizers %s has them" % (rule, __version__)
    out += ", which differ in their version of Unicode. */\n"
    out += "enum {\n"
    for bit, (name, comment, _) in enumerate(table):
        comma = "," if bit + 1 < len(table) else ""
        out += "    FG__CHAR_%s = %d%s %s/* %s */\n" % (name, 1 << bit, comma, "" if comma else " ", comment)
    out += "};\n\n"
    out += "/* first code point << 9 | classes, up to the next entry */\n"
    out += array("static const uint32_t fg__unicode_classes[]",
                 ["0x%X" % (c << 9 | v) for c, v in runs(bits.get)])
    out += "\n/* first code point << 9 | canonical combining class, up to the next entry (NFC as of Unicode 9) */\n"
    marks = runs(combining_class)
    out += array("static const uint32_t fg__unicode_marks[]", ["0x%X" % (c << 9 | v) for c, v in marks])
    out += "\n/* A character and the one or two (else 0) it stands for, by character. "
    out += "Hangul syllables are computed. */\n"
    out += array("static const uint32_t fg__unicode_pairs[][3]", ["{0x%X,0x%X,0x%X}" % pair for pair in pairs])
    out += "\n/* Those of the pairs above that NFC composes, ordered by their two characters. */\n"
    out += array("static const uint16_t fg__unicode_composed[]", ["%d" % i for i in composable])
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", metavar="FILE", help="compare with this file instead of printing")
    args = parser.parse_args()
    text = section()
    if not args.check:
        sys.stdout.write(text)
        return 0
    with open(args.check, encoding="utf-8") as file:
        same = text in file.read()
    print("%s: %s" % (args.check, "the tables are up to date" if same else "the tables differ: run make_unicode.py"))
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
