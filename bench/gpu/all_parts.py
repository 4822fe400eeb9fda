"""all_parts.py: the table of all.py: the parts, their GPUs, expected seconds and limits.

Seconds are estimates for H200s, used for the plan; a part is stopped at its limit. A test's name says what varies, a
figure's name its picture or table. Programs of ours that take --device can be tried on a CPU.
"""

import dataclasses
import importlib.util
import os
import shutil
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.normpath(os.path.join(HERE, "..", ".."))
FAMILIES = ("qwen3", "qwen3_moe", "qwen2", "llama31", "mistral_v03")
RANKS = (1, 2, 4, 8)
NEEDS_A_GPU = "needs a GPU"


@dataclasses.dataclass
class Part:
    group: str  # test, figure or sanitize
    title: str
    gpus: int
    seconds: int
    limit: int
    commands: list  # in sequence; {records} is replaced by a file of records
    env: dict = dataclasses.field(default_factory=dict)
    missing: str = ""  # why it cannot run
    excused: bool = False  # and that is no failure

    @property
    def name(self):
        return f"{self.group} {self.title}"


@dataclasses.dataclass
class Setting:
    build: str
    peers: str
    shared: str  # or None
    gpus: int
    cpu: bool
    assume_all: bool  # for the plan of another machine: assume that everything is available

    @property
    def device(self):
        return "cpu" if self.cpu else "cuda"

    @property
    def ops(self):
        return os.path.join(self.build, "bench", "gpu", "libinvar_gpu_ops.so")

    def program(self, *path):
        return os.path.join(self.build, *path)

    def cuda_test(self, noun):
        """tests/cuda/test_NOUN.c; the one that replaces functions of the library is a program by itself."""
        return [self.program("tests", "test_cuda_device" if noun == "device" else "test_cuda"), noun]

    def with_ranks(self):
        return [r for r in RANKS if 1 < r <= self.gpus]

    def most(self, gpus):
        """This many GPUs, or as many as are available: a power of two."""
        return max(r for r in RANKS if r <= min(gpus, self.gpus))


def config(name):
    return os.path.join(HERE, "configs", name)


def script(name):
    return [sys.executable, os.path.join(HERE, name)]


def tests(s):
    parts = []

    def add(title, gpus, seconds, limit, command, env=None, **more):
        env = {**({"INVAR_SHARED": s.shared} if s.shared else {}), **(env or {})}
        parts.append(Part("test", title, gpus, seconds, limit, [command], env, **more))

    for noun, seconds, limit in (("ex2", 3, 30), ("linear", 45, 90), ("linear_wgmma", 20, 60), ("attention", 25, 60),
                                 ("rows", 5, 30), ("route", 5, 30), ("sample", 30, 60)):
        add(noun, 1, seconds, limit, s.cuda_test(noun))
    add("tree_allreduce", s.gpus, 20, 60, s.cuda_test("tree_allreduce"))
    add("device", s.gpus, 40, 120, s.cuda_test("device"), {"INVAR_DEVICES": "cuda"})
    for part in parts:
        part.missing, part.excused = (NEEDS_A_GPU if s.cpu else ""), s.cpu
    add("soak", s.most(2), 30, 90, [s.program("tests", "test_engine"), "soak"],
        {"INVAR_DEVICE": s.device, "INVAR_SOAK_REQUESTS": "300" if s.cpu else "800"})
    sizes = ",".join(map(str, [1] + s.with_ranks()))
    add("eval", s.most(8), 40, 120, script("eval.py") + [s.program("invar"), "--devices", s.device, "--tp", sizes] +
        (["--problems", "4"] if s.cpu else []))
    verify(s, add)
    return parts


def verify(s, add):
    models = [("tiny-math", os.path.join(ROOT, "models", "tiny-math"))]
    models += [(family, os.path.join(ROOT, "tests", "data", "hf", family)) for family in FAMILIES]
    models.append(("stories15m", os.path.join(s.shared or "SHARED", "models", "stories15m")))
    sizes = ",".join(map(str, s.with_ranks()))
    for name, path in models:
        absent = not os.path.isdir(path) and not s.assume_all
        more = {"missing": f"{path} is not here (--shared)" if absent else "", "excused": absent}
        command = [s.program("invar"), "verify", path, "--device", s.device]
        few = ["--axes", "batch,chunk", "--combinations", "1"] if s.cpu else []
        add(f"verify {name}", 1, 15, 90, command + few, **more)
        if sizes:  # with and without graphs, batches and chunks on several GPUs
            axes = ["--axes", "tp,device,batch,chunk", "--tp-sizes", sizes, "--batch-sizes", "5", "--chunk-sizes", "61"]
            axes += ["--combinations", "1" if s.cpu else "4"]
            add(f"verify {name} x{s.most(8)}", s.most(8), 7, 45, command + axes, **more)


def steps(s, model, ranks, numerics, cases, small="decode:4:64,prefill:64"):
    """bench_steps; on a CPU with a small model and small cases."""
    command = [s.program("bench", "gpu", "bench_steps")]
    command += [os.path.join(ROOT, "models", "tiny-math") if s.cpu else config(model), "--device", s.device]
    return command + ["--tp", str(ranks), "--numerics", numerics, "--cases", small if s.cpu else cases, "--json",
                      "{records}"]


DECODE, PREFILL = "decode:1:1024,decode:64:1024", "prefill:8192"
UNEVEN = "decode:100:1024,decode:200:1024,prefill:1000"  # rows that fill no tile


def latency_cases(s):
    """Figure 9: 64 sequences; all sizes from four GPUs on."""
    inputs, outputs = ((128, 1024, 4096), (128, 512, 1024)) if s.gpus >= 4 else ((128, 1024), (128, 512))
    return ",".join(f"latency:64:{i}:{o}" for o in outputs for i in inputs)


def figures(s):
    parts = []

    def add(title, gpus, seconds, limit, *commands, torch=False):
        part = Part("figure", title, gpus, seconds, limit, list(commands))
        if torch and s.cpu:
            part.missing, part.excused = NEEDS_A_GPU, True
        elif torch and not s.assume_all and not importlib.util.find_spec("torch"):
            part.missing, part.excused = "PyTorch is not here", True
        parts.append(part)

    for title, more in (("linear", []), ("figure8", ["--figure8", "--turns", "5"])):
        command = script("linear.py") + ["--ops", s.ops, "--peers", s.peers] + more
        compiling = [command + ["--compile"]] if s.assume_all or os.path.isdir(s.peers) else []
        add(title, 1, 90, 170, *compiling, command + ["--json", "{records}"], torch=True)
    add("in turn", 1, 15, 40, script("linear.py") + ["--ops", s.ops, "--in-turn", "--json", "{records}"], torch=True)
    add("components", 1, 50, 110, script("components.py") +
        ["--ops", s.ops, "--peers", s.peers, "--json", "{records}"], torch=True)
    add("attention", 1, 25, 60, script("attention_peers.py") + [s.ops, "decode", "prefill", "--json", "{records}"],
        torch=True)
    add("experts", 1, 45, 90, script("experts.py") +
        ["--ops", s.ops, "--leaves", "1", "--packed", "--peer"], torch=True)
    add("torch", 1, 60, 110, script("torch_loop.py") + ["--json", "{records}"], torch=True)
    for title in ("row_ops", "optimizer"):
        add(title, 1, 15, 40, [s.program("bench", "gpu", "bench_" + title)])
        if s.cpu:
            parts[-1].missing, parts[-1].excused = NEEDS_A_GPU, True
    models(s, add)
    for ranks in s.with_ranks():
        add(f"allreduce x{ranks}", ranks, 25, 60, script("allreduce_peers.py") +
            [str(ranks), s.program("bench", "gpu", "bench_allreduce"), "4096", "{records}"], torch=True)
    return parts


def models(s, add):
    several = s.with_ranks()[::-1]  # the most first: what time does not allow is the rest
    for ranks in several + [1]:
        numerics, small = "invar,vanilla-blas", "decode:4:64,prefill:64"
        cases = f"{DECODE},decode:256:1024,{PREFILL},{UNEVEN}"
        seconds = 25
        if ranks == 1:  # the 1,000 sequences
            cases, small, seconds = f"{cases},same:1000:100:100", f"{small},same:20:20:20", 45
        if ranks == s.most(4):
            numerics, cases = "invar,bio,vanilla-blas", f"{cases},{latency_cases(s)}"
            small += ",latency:8:32:16,latency:8:64:16,latency:8:32:32,latency:8:64:32"
            seconds += 90
        add(f"8b x{ranks}", ranks, seconds, 2 * seconds, steps(s, "qwen3-8b", ranks, numerics, cases, small))
    for ranks in several + [1]:
        if ranks in (1, 4):
            add(f"30b-a3b x{ranks}", ranks, 90 if ranks == 1 else 50, 150,
                steps(s, "qwen3-30b-a3b", ranks, "invar,vanilla-blas", f"{DECODE},{PREFILL}"))
        if ranks in (2, 4):
            add(f"32b x{ranks}", ranks, 40, 110,
                steps(s, "qwen3-32b", ranks, "invar,vanilla-blas", f"{DECODE},{PREFILL}"))
    for ranks in several + [1]:
        command = script("serve.py") + [s.program("invar"), "--devices", s.device, "--ranks", str(ranks), "--tp",
                                        str(ranks), "--turns", "1", "--json", "{records}"]
        if s.cpu:
            command += ["--model", os.path.join(ROOT, "models", "tiny-math"), "--streams", "8", "--input", "16",
                        "--output", "16"]
        add(f"serve x{ranks}", ranks, 30, 90, command)


# Seconds of each test under the slowest tool, racecheck, with a tenth of its shapes.
SANITIZED = (("linear", 200), ("attention", 150), ("sample", 120), ("linear_wgmma", 120), ("device", 90), ("tree_allreduce", 40),
             ("rows", 30), ("route", 20))
TOOLS = (("racecheck", 1.0), ("memcheck", 0.5), ("initcheck", 0.4), ("synccheck", 0.3))


def sanitizers(s):
    program = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    parts = []
    for noun, seconds in SANITIZED:
        for tool, share in TOOLS:
            env = {"INVAR_TEST_SHORT": "1", "INVAR_DEVICES": "cuda", "INVAR_CASE": "qwen3"}
            command = [program, "--tool", tool, "--error-exitcode", "9", *s.cuda_test(noun)]
            parts.append(Part("sanitize", f"{tool} {noun}", 1, int(seconds * share), 280, [command], env))
            if not os.access(program, os.X_OK) and not s.assume_all:
                parts[-1].missing = f"{program} is not here"
            elif s.cpu:
                parts[-1].missing, parts[-1].excused = NEEDS_A_GPU, True
    return parts


def table(s):
    """Every part, in the order of the report."""
    parts = tests(s) + figures(s) + sanitizers(s)
    for part in parts:
        for command in part.commands:
            ours = [word for word in command if word.startswith(s.build + os.sep)]
            for path in ours:
                if not part.missing and not os.path.exists(path) and not s.assume_all:
                    part.missing = f"{os.path.relpath(path, s.build)} is not built"
    return parts
