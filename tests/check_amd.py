#!/usr/bin/env python3
"""Runs the HIP backend's kernels as AMD's machine code, instruction by instruction, without a card.

    git clone https://github.com/tinygrad/tinygrad
    tests/check_amd.py --tinygrad tinygrad                          # the kernels' tests on gfx1100, gfx1201 and gfx942
    tests/check_amd.py --tinygrad tinygrad --target gfx1100 -- gemm # those whose name has "gemm", on one of them
    tests/check_amd.py --tinygrad tinygrad --profile -- test_gpu_gemv   # what each kernel's largest launch executed, by kind

clang compiles backends/cuda/kernels.cu for the target, as ./build.sh hip does; the tests of tests/test_gpu_kernels.c, a shared
library here, give their launches away to this program, and compare what comes back with their references in double precision. What
an instruction does is tinygrad's (test/mockgpu/amd, MIT), which takes it from the pseudocode of AMD's manuals and compares
it with cards; where it is wrong about what our kernels use, MENDS below says what stands there instead, and for which commit. The
first use of an instruction compiles it, so that the second run is quicker (a cache in ~/.cache/tinygrad).

What comes back right shows that the code object is: the kernel's descriptor and arguments, layouts of matrix fragments, what
lanes exchange, what the compiler made. Races are found by tests/host_gpu.h, not here: waves run one after another between barriers.

--clang: a clang with AMD's targets (default: the first of clang, clang-19 and on). BUILD: where things go (default build).
A test that launches nothing for the target is skipped. The last line is "N passed, N failed, N skipped"."""

import argparse
import collections
import concurrent.futures
import contextlib
import ctypes
import importlib.util
import mmap
import os
import pathlib
import random
import re
import shutil
import struct
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGETS = {"gfx1100": ("rdna3", 32), "gfx1201": ("rdna4", 32), "gfx942": ("cdna", 64)}  # tinygrad's name, lanes of a wave
LDS_REACH = (1 << 32) + (1 << 17)  # what an address in the LDS and its offset can name; lanes that are off have any, and tinygrad reads there
NOTHING_RAN = 77  # a test that launches nothing for waves of the target's width has shown nothing
# There are no caches here. tinygrad does not know the first two (of gfx11).
BUFFER_INVALIDATES = (0xE0AC0000, 0xE0B00000)  # buffer_gl0_inv, buffer_gl1_inv
CACHE_OPERATIONS = ("GLOBAL_INV", "GLOBAL_WB", "GLOBAL_WBINV", "BUFFER_INV", "BUFFER_WBL2")


class CodeObject:
    """An ELF file of clang's, laid out in memory as it asks; kernels: addresses of their descriptors (amdhsa, code object 5 and 6)."""

    def __init__(self, path):
        elf = path.read_bytes()
        segments = [struct.unpack_from("<IIQQQQQQ", elf, at) for at in self.table(elf, 32, 54)]
        loads = [s for s in segments if s[0] == 1]
        size = max(s[3] + s[6] for s in loads)
        self.memory = mmap.mmap(-1, size + 64)
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        for _, _, offset, address, _, in_file, _, _ in loads:
            self.memory[address:address + in_file] = elf[offset:offset + in_file]
        self.kernels = {name[len("fg_gpu_"):-len(".kd")]: self.base + value for name, value in self.symbols(elf) if name.endswith(".kd")}

    @staticmethod
    def table(elf, start_at, size_at):
        start, (size, n) = struct.unpack_from("<Q", elf, start_at)[0], struct.unpack_from("<HH", elf, size_at)
        return [start + i * size for i in range(n)]

    def symbols(self, elf):
        sections = [struct.unpack_from("<IIQQQQIIQQ", elf, at) for at in self.table(elf, 40, 58)]
        for s in sections:
            if s[1] != 11:  # SHT_DYNSYM
                continue
            names = sections[s[6]][4]
            for at in range(s[4], s[4] + s[5], 24):
                name, _, _, _, value, _ = struct.unpack_from("<IBBHQQ", elf, at)
                yield elf[names + name:elf.index(b"\0", names + name)].decode(), value


class Shape(ctypes.Structure):
    """fg_gpu_shape of backends/cuda/kernels.h."""
    _fields_ = [("grid_x", ctypes.c_uint32), ("grid_y", ctypes.c_uint32), ("block", ctypes.c_uint32), ("shared_bytes", ctypes.c_uint32)]


# What tinygrad (at TRIED) gets wrong, and what stands there instead.
TRIED = "a9069c177a9d"
MENDS = [
    # Registers from 128 on are the high halves of others in instructions of 16 bits on gfx11 and gfx12, not on gfx9.
    ("write_hi_half = bits['d'] == 16 and (", "write_hi_half = bits['d'] == 16 and ctx.wave_size == 32 and ("),
    ("if bits['s0'] == 16:  # src0 >= 384", "if bits['s0'] == 16 and ctx.wave_size == 32:  # src0 >= 384"),
    ("vsrc1_hi = bits['s0'] == 16 and (", "vsrc1_hi = bits['s0'] == 16 and ctx.wave_size == 32 and ("),
    # Signs of operands that are a part of a register (SDWA) are left out.
    ("  s0 = _sdwa_select(s0_raw, src0_sel, src0_sext)\n  if",
     "  s0 = _apply_src_mods(_sdwa_select(s0_raw, src0_sel, src0_sext), 0, _iattr(inst, 'src0_abs'), _iattr(inst, 'src0_neg'), "
     "inst.canonical_op_bits['s0'])\n  if"),
    ("    s1 = _sdwa_select(s1_raw, src1_sel, src1_sext)\n    srcs:",
     "    s1 = _apply_src_mods(_sdwa_select(s1_raw, src1_sel, src1_sext), 0, _iattr(inst, 'src1_abs'), _iattr(inst, 'src1_neg'), "
     "inst.canonical_op_bits['s1'])\n    srcs:"),
    # Sums of a product that begin as a constant are taken from a register of its number (gfx11, gfx12).
    ("    mat_c = [ctx.rvgpr_dyn(src2_r + _c(vgpr), UOp.const(lane, dtypes.int)).bitcast(out_dt)",
     "    src2 = ctx.inst_field(type(inst).src2)\n    mat_c = [(src2 >= _c(256)).where(ctx.rvgpr_dyn(src2_r + _c(vgpr), "
     "UOp.const(lane, dtypes.int)), ctx.rsgpr_dyn(src2, src2 < _c(256))).bitcast(out_dt)"),
    # x % n is left out of these: lanes that are off then name registers that are none.
    ("  fix_name = op_name.replace(", """  if 'PERMUTE_B32' in op_name:
    pcode = re.sub(r"= (.*) / (4U?) % (\\d+)U?;", lambda m: f"= (({m[1]}) / {m[2]}) & {int(m[3]) - 1}U;", pcode)
  fix_name = op_name.replace("""),
]


def load_emulator():
    """tinygrad's test/mockgpu/amd/emu.py, mended."""
    spec = importlib.util.find_spec("test.mockgpu.amd.emu")
    source = pathlib.Path(spec.origin).read_text()
    for old, new in MENDS:
        if source.count(old) != 1:
            sys.exit(f"tinygrad has changed where it says {old!r}: take its commit {TRIED}, or change MENDS")
        source = source.replace(old, new)
    module = importlib.util.module_from_spec(spec)
    exec(compile(source, spec.origin, "exec"), module.__dict__)
    return module


class Machine:
    """A compute unit: one workgroup at a time, its waves in a random order from barrier to barrier."""

    def __init__(self, target, code):
        self.emu, self.code = load_emulator(), code
        self.arch, self.lanes = TARGETS[target]
        self.lds = mmap.mmap(-1, LDS_REACH, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)  # MAP_NORESERVE
        self.lds_at = ctypes.addressof(ctypes.c_char.from_buffer(self.lds))
        self.steps, self.random = {}, random.Random(1)
        self.executed, self.launches = collections.Counter(), collections.Counter()
        self.largest = {}  # of each kernel: its launch of most instructions, as (shape, instructions by kind)

    def decode(self, pc):
        """The instruction at an address: a function (or, where it does nothing here, its bytes), the buffers it takes, whether it is a barrier, its name."""
        words = ctypes.string_at(pc, 16)
        if struct.unpack_from("<I", words)[0] in BUFFER_INVALIDATES:
            return 8, (), False, "BUFFER_GL_INV"
        inst = self.emu.decode_inst(words, self.arch)
        if self.emu._op_name(inst) in CACHE_OPERATIONS:
            return inst.size(), (), False, self.emu._op_name(inst)
        program, runtime = self.emu._get_runner(words[:inst.size() + 4], self.arch)
        return runtime.fxn, program.arg.globals, getattr(inst, "op", None) in self.emu._BARRIER_OPS, self.emu._op_name(inst)

    def run_wave(self, wave):
        """Until its next barrier, or its end: whether it has ended."""
        state, buffers = wave
        while (pc := state.pc) != self.emu.ENDPGM_PC:
            if pc not in self.steps:
                self.steps[pc] = self.decode(pc)
            function, uses, barrier, name = self.steps[pc]
            self.executed[name] += 1
            if isinstance(function, int):
                state.pc = pc + function
            else:
                function(*[buffers[i] for i in uses])
            if barrier:
                return False
        return True

    def run_group(self, x, y, block, entry, rsrc2, scratch, arguments, user):
        waves = []
        for first in range(0, block, self.lanes):
            state = self.emu._init_wave(entry, first, block, block, 1, 1, arguments, rsrc2, scratch, self.arch, x, y, 0, user, self.lanes)
            own = ctypes.create_string_buffer(max(scratch * self.lanes, 4))
            at = (state.sgpr_buf._buf.va_addr, state.vgpr_buf._buf.va_addr, 0, self.lds_at, ctypes.addressof(own), state.accvgpr_buf._buf.va_addr)
            waves.append(((state, [ctypes.c_uint64(a) for a in at]), own))
        while waves:
            self.random.shuffle(waves)
            waves = [w for w in waves if not self.run_wave(w[0])]

    def launch(self, name, args, shape):
        descriptor = self.code.kernels[name]
        lds, scratch, kernarg = struct.unpack("<III", ctypes.string_at(descriptor, 12))
        entry = descriptor + struct.unpack("<q", ctypes.string_at(descriptor + 16, 8))[0]
        rsrc1, rsrc2 = struct.unpack("<II", ctypes.string_at(descriptor + 48, 8))
        properties, = struct.unpack("<H", ctypes.string_at(descriptor + 56, 2))
        arguments = ctypes.create_string_buffer(ctypes.string_at(args, kernarg), kernarg + 64)
        at = ctypes.addressof(arguments)
        packet = ctypes.create_string_buffer(struct.pack("<6H5I2Q", 0, 2, shape.block, 1, 1, 0, shape.grid_x * shape.block, shape.grid_y, 1, scratch,
                                                         lds, descriptor, at), 64)
        user = user_registers(properties, ctypes.addressof(packet), at, scratch)
        before = self.executed.copy()
        flushes = rsrc1 >> 16 & 3 != 3  # FLOAT_MODE: subnormal floats are 0
        with self.emu._MXCSRContext() if flushes else contextlib.nullcontext():
            for y in range(shape.grid_y):
                for x in range(shape.grid_x):
                    ctypes.memset(self.lds_at, 0xFF, lds)  # NaN: what a kernel reads before it has written
                    self.run_group(x, y, shape.block, entry, rsrc2, scratch, at, user)
        self.launches[name] += 1
        executed = self.executed - before
        if executed.total() > self.largest.get(name, (None, collections.Counter()))[1].total():
            self.largest[name] = (f"{shape.grid_x}x{shape.grid_y}x{shape.block}", executed)


def profile_lines(machine):
    """For each kernel: instructions of waves in its largest launch, all and by what they need, and the most frequent."""
    classes = {"matrix": r"V_.*(WMMA|MFMA)", "vector": "V_", "LDS": "DS_", "memory": "GLOBAL|SCRATCH|FLAT", "scalar": "S_(?!DELAY|WAIT|NOP|CLAUSE)"}
    for name, (shape, executed) in sorted(machine.largest.items()):
        sums = collections.Counter()
        for kind, n in executed.items():
            sums[next((c for c, pattern in classes.items() if re.match(pattern, kind)), "other")] += n
        often = ", ".join(f"{n} {kind}" for kind, n in executed.most_common(8))
        yield f"{name} {shape}: " + ", ".join(f"{sums[c]} {c}" for c in classes) + f" ({often})"


def user_registers(properties, packet, arguments, scratch):
    """What a kernel finds in its first scalar registers, by its descriptor's kernel_code_properties."""
    words = []
    for bit, value in enumerate([(0, 0), (packet,), (0,), (arguments,), (0,), (0,)]):  # buffer, dispatch packet, queue, arguments, id, flat scratch
        if properties >> bit & 1:
            words += [w for v in value for w in (v & 0xFFFFFFFF, v >> 32)]
    return words + ([scratch] if properties >> 6 & 1 else [])


def run_test(target, test, build):
    """In a process of its own: runs a test, its launches for waves of the target's width by the machine. Prints what it says."""
    machine = Machine(target, CodeObject(build / f"{target}.o"))
    os.environ.update(FASTGEN_CUDA_LIBRARY="none", FASTGEN_HIP_LIBRARY=str(build / "standin.so"))
    library, driver = ctypes.CDLL(str(build / "test.so")), ctypes.CDLL(str(build / "standin.so"))
    wrong = []

    def elsewhere(name, args, shape, width):
        name = name.decode()
        if width != machine.lanes or name not in machine.code.kernels or wrong:
            return False
        try:
            machine.launch(name, args, shape[0])
        except Exception as error:
            wrong.append(f"{name}: {error}")
        return not wrong
    callback = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_char_p, ctypes.c_void_p, ctypes.POINTER(Shape), ctypes.c_int)(elsewhere)
    for where, pointer in ((library, "gk_elsewhere"), (driver, "standin_elsewhere")):
        ctypes.c_void_p.in_dll(where, pointer).value = ctypes.cast(callback, ctypes.c_void_p).value
    failed = library.main(2, (ctypes.c_char_p * 3)(b"test", test.encode(), None))
    ctypes.CDLL(None).fflush(None)
    for text in wrong:
        print(f"NOT RUN {text}")
    print(f"RAN {sum(machine.launches.values())} launches of {len(machine.launches)} kernels, {sum(machine.executed.values())} instructions, "
          f"{len(machine.executed)} kinds")
    for line in profile_lines(machine):
        print("PROFILE " + line)
    print("KERNELS " + " ".join(sorted(machine.launches)))
    print("KINDS " + " ".join(sorted(machine.executed)))
    return 1 if failed or wrong else 0 if machine.launches else NOTHING_RAN


def build_all(build, targets, clang):
    """What is older than its sources."""
    build.mkdir(parents=True, exist_ok=True)
    cc = ["cc", "-O1", "-std=gnu99", "-w", "-shared", "-fPIC"]
    jobs = [(build / "test.so", [*cc, "-DFG_NO_SIMD", "tests/test.c", "-lm", "-lpthread", "-ldl"]),
            (build / "standin.so", [*cc, "-ffp-contract=off", "tests/standin_gpu.c", "-lm"])]
    for target in targets:
        jobs.append((build / f"{target}.o", [clang, "-x", "hip", "-nogpuinc", "-nogpulib", f"--offload-arch={target}", "--offload-device-only",
                                             "--no-gpu-bundle-output", "-O3", "-ffp-contract=off", "backends/cuda/kernels.cu"]))
    newest = max(p.stat().st_mtime for d in (".", "backends/cuda", "backends/hip", "tests") for p in (ROOT / d).iterdir() if p.suffix in (".h", ".cuh", ".c", ".cu"))
    jobs = [job + ["-o", out] for out, job in jobs if not out.exists() or out.stat().st_mtime < newest]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda job: subprocess.run(job, cwd=ROOT, check=True), jobs))


def find_clang(given):
    names = [given] if given else ["clang"] + [f"clang-{n}" for n in range(19, 24)]
    for name in names:
        path = shutil.which(name)
        if path and "amdgcn" in subprocess.run([path, "-print-targets"], capture_output=True, text=True).stdout:
            return path
    sys.exit("no clang with AMD's targets is installed (apt-get install clang-19)")


def tests_named(words):
    """The tests whose launches can be given away, of these words."""
    text = (ROOT / "tests/test_gpu_kernels.c").read_text()
    found = [t for t in re.findall(r"RUN\((test_gpu_\w+)\)", text) if not re.search("_host_|left_out|warpgroups|wg_ways", t)]
    found += ["test_gpu_host_model", "test_gpu_host_copy_blocks", "test_gpu_host_engine", "test_gpu_host_swap"]
    return [t for t in found if not words or any(w in t for w in words)]


def run_all(options, build, clang):
    """Every test on every target; returns lines of what failed."""
    tools = build / "bin"  # tinygrad calls "clang"
    tools.mkdir(exist_ok=True)
    (tools / "clang").unlink(missing_ok=True)
    (tools / "clang").symlink_to(clang)
    environment = dict(os.environ, PYTHONPATH=str(options.tinygrad), PATH=f"{tools}:{os.environ['PATH']}", BUILD=str(build.parent))

    def one(job):
        start = time.time()
        done = subprocess.run([sys.executable, __file__, "--one", *job], env=environment, capture_output=True, text=True)
        return job, done, time.time() - start
    kernels, kinds, passed, failed, skipped = collections.defaultdict(set), collections.defaultdict(set), 0, 0, 0
    jobs = [(target, test) for target in options.target for test in tests_named(options.tests)]
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for (target, test), done, seconds in pool.map(one, jobs):
            lines = done.stdout.splitlines()
            says = {line.split(" ", 1)[0]: line.split(" ", 1)[1] for line in lines if line.startswith(("RAN ", "KERNELS ", "KINDS "))}
            kernels[target].update(says.get("KERNELS", "").split())
            kinds[target].update(says.get("KINDS", "").split())
            good, nothing = done.returncode == 0, done.returncode == NOTHING_RAN
            passed, skipped, failed = passed + good, skipped + nothing, failed + (not good and not nothing)
            print(f"{'ok' if good else '-' if nothing else 'FAILED':6}  {target}  {test:28} {seconds:4.0f} s  {says.get('RAN', '')}", flush=True)
            if options.profile:
                print("\n".join("        " + line[len("PROFILE "):] for line in lines if line.startswith("PROFILE")), flush=True)
            if not good and not nothing:
                print("\n".join(line for line in lines if not line.startswith(("KERNELS", "KINDS", "PROFILE")))[-3000:], done.stderr[-3000:], flush=True)
    for target in options.target:
        print(f"{target}: {len(kernels[target])} kernels, {len(kinds[target])} kinds of instructions")
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return failed


def main():
    build = pathlib.Path(os.environ.get("BUILD", ROOT / "build")).resolve() / "amd"
    if sys.argv[1:2] == ["--one"]:
        return run_test(sys.argv[2], sys.argv[3], build)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tinygrad", type=pathlib.Path, required=True, help="a checkout of github.com/tinygrad/tinygrad")
    parser.add_argument("--target", nargs="*", choices=TARGETS, default=list(TARGETS))
    parser.add_argument("--clang")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--profile", action="store_true", help="print what each kernel executed")
    parser.add_argument("tests", nargs="*", help="parts of tests' names")
    options = parser.parse_args()
    options.tinygrad = options.tinygrad.resolve()
    clang = find_clang(options.clang)
    build_all(build, options.target, clang)
    return 1 if run_all(options, build, clang) else 0


if __name__ == "__main__":
    sys.exit(main())
