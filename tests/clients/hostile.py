"""What an honest client gets while others wish the server ill.

    hostile.py [--seconds S] [--only NAME,...] [--server BINARY] [--model DIR | --tokenizer DIR] [--flags "..."] [--json FILE]

A server of tiny-math (or of DIR, or of dummy weights with the tokenizer of DIR) has one honest client: a stream of chat
completions with fixed seeds, one after the other, on one connection. It is timed alone, then for S seconds next to each
hostile neighbour (hostile_neighbours.py), then next to all of them together; between two neighbours it is timed alone
again, because other programs share the machine. Wanted of each neighbour:

- the honest rate is at least 80 % of the mean of the quiet ones before and after. Where neighbours generate many tokens,
  which is their right, it is compared with the rate next to `quick_readers`, who ask for as many and read at once.
- no digest of the honest client, or of a slow reader, is another than its quiet one; no honest request fails.
- no event of the honest client comes more than --gap seconds after the one before, from its request on.
- new clients get an answer (`GET /health` twice a second on a connection of its own), 503 beyond the limit alone.
- a while after the traffic the server holds as much memory as before, within 10 % and 16 MB.
- every hostile request that is owed an answer gets one.

The neighbours are processes with `nice 19`, so that they take what the server leaves of the processors. `control` is
such a process that computes all the time and sends nothing: what it costs the honest client is the scheduler's, not the
server's, and the wanted rate of the others is lowered by it, in proportion to the processor time that they took. A rate
below what is wanted, measured while other programs took processors that the server lacked (/proc/PID/task/*/schedstat), is
measured again.

Exit status: 0, 1 where anything wanted is missing, 77 without a server binary."""

import argparse
import asyncio
import json
import os
import pathlib
import re
import statistics
import sys
import tempfile
import time

import wire
from served import BINARY, MB, TINY_MATH, Served, cpu_seconds, dummy_model, machine_cpu_seconds, raise_file_limit
from support import SKIPPED
from wire import Lost

HERE = pathlib.Path(__file__).resolve().parent
RATE_WANTED = 0.8
RSS_SHARE, RSS_SLACK = 1.1, 16 * MB
SETTLE_S = 10
NOISE_CORES = 0.2  # that others took, and the server lacked, more than in the quiet
TRIES = 3
PROBE_S = 0.5
WARM_S = 2
CUT_LINE = re.compile(r"\bcut\b|stall|not read|reads nothing|slow reader|no progress", re.I)

# name: what differs from the usual. load: the name of the neighbour whose rate is the one to compare with. mute: the log
# stays unread meanwhile. full: new clients may be refused with 503. later: it ends long after its traffic.
NEIGHBOURS = {
    "control": {},
    "regexes": {},
    "schemas": {},
    "grammars": {},
    "bodies": {},
    "slow_senders": {},
    "quick_readers": {"is_load": True},
    "slow_readers": {"load": "quick_readers"},
    "stopped_readers": {"load": "quick_readers", "later": True},
    "log_flood": {"mute": True},
    "silent_connections": {},
    "resets": {},
    "half_open": {},
    "over_limit": {"full": True},
}
TOGETHER = [n for n in NEIGHBOURS if n not in ("control", "quick_readers", "stopped_readers", "over_limit")]


class Honest:
    """The honest client: it never pauses. Every event's time is kept."""

    def __init__(self, port, tokens):
        self.port, self.events, self.requests, self.changed, self.failures = port, [], [], 0, []
        self.bodies = [self.body(i, tokens) for i in range(6)]
        self.quiet, self.stopping = [], False

    @staticmethod
    def body(i, tokens):
        question = f"What is {17 + i} * {6 + 3 * i}?"
        return wire.post("/v1/chat/completions", {
            "messages": [{"role": "user", "content": question}], "seed": i, "stream": True, "max_tokens": tokens, "ignore_eos": True})

    def arrived(self, now, data):
        count = data.count(b"data: {")
        if count:
            self.events.append((now, count))

    async def learn(self):
        """The digests of a quiet server."""
        for body in self.bodies:
            answer = await wire.ask_once(self.port, body)
            if not answer.complete_stream():
                raise SystemExit(f"honest client, alone: {bytes(answer.raw[:400])}")
            self.quiet.append(answer.digests())

    async def run(self):
        connection, i = None, 0
        while not self.stopping:
            try:
                if not connection or not connection.open_still():
                    connection = await wire.Wire.open(self.port, self.arrived)
                self.requests.append(time.monotonic())
                answer = await connection.ask(self.bodies[i], 120)
                if not answer.complete_stream():
                    self.failures.append((time.monotonic(), f"status {answer.status}"))
                elif answer.digests() != self.quiet[i]:
                    self.changed += 1
            except Lost as e:
                self.failures.append((time.monotonic(), str(e)))
                connection = None
                await asyncio.sleep(0.1)
            i = (i + 1) % len(self.bodies)
        if connection:
            connection.close()

    def rate(self, start, end):
        return sum(n for at, n in self.events if start <= at < end) / (end - start)

    def longest_gap(self, start, end):
        times = [start, *(at for at, _ in self.events if start <= at < end), end]
        return max(b - a for a, b in zip(times, times[1:]))

    def failed(self, start, end):
        return [why for at, why in self.failures if start <= at < end]


class Probe:
    """New clients, one after the other."""

    def __init__(self, port):
        self.port, self.seen, self.stopping = port, [], False

    async def run(self):
        while not self.stopping:
            begin = time.monotonic()
            try:
                status = (await wire.ask_once(self.port, wire.get("/health"), 30)).status
            except Lost as e:
                status = f"lost ({e})"
            self.seen.append((begin, status, time.monotonic() - begin))
            await asyncio.sleep(max(0.0, begin + PROBE_S - time.monotonic()))

    def between(self, start, end):
        return [(status, took) for at, status, took in self.seen if start <= at < end]


class Machine:
    """Processor time: of the server, of this harness and its children, of everyone else, over a stretch of time."""

    def __init__(self, server, children=()):
        self.server, self.children = server, children
        self.start = self._now()

    def _now(self):
        ours = sum(os.times()[:2])
        children = sum(cpu_seconds(p) for p in self.children)
        return (time.monotonic(), machine_cpu_seconds(), self.server.cpu(), self.server.waited(), ours, children)

    def cores(self):
        """Processors that the server, the children, and programs of others had on average, and that the server wanted."""
        elapsed, machine, server, waited, ours, children = (b - a for a, b in zip(self.start, self._now()))
        return {"server": server / elapsed, "neighbours": children / elapsed, "waited": waited / elapsed,
                "others": max(0.0, machine - server - ours - children) / elapsed}


class Child:
    """A hostile process."""

    def __init__(self, name, port, seconds, seed, context):
        self.name = name
        self.command = ["nice", "-n", "19", sys.executable, str(HERE / "hostile_neighbours.py"), name, str(port), str(seconds),
                        str(seed), str(context)]
        self.process, self.line = None, None

    async def start(self):
        self.process = await asyncio.create_subprocess_exec(*self.command, stdout=asyncio.subprocess.PIPE)
        if (await asyncio.wait_for(self.process.stdout.readline(), 180)).strip() != b"ready":
            raise SystemExit(f"{self.name}: its process did not begin")

    async def report(self):
        line = await self.process.stdout.readline()
        await self.process.wait()
        if not line:
            raise SystemExit(f"{self.name}: its process ended without a report, with {self.process.returncode}")
        return json.loads(line)


def merge(reports):
    """One report of several processes."""
    out = {"statuses": {}, "lost": 0, "changed": 0, "wrong": 0, "problems": {}, "cpu_s": 0.0, "facts": {}}
    for r in reports:
        for key in ("lost", "changed", "wrong", "cpu_s"):
            out[key] += r[key]
        for key in ("statuses", "problems"):
            for name, n in r[key].items():
                out[key][name] = out[key].get(name, 0) + n
        out["facts"] |= r["facts"]
    return out


class Session:
    """One server, its honest client, and the rows of the table."""

    def __init__(self, args, server, context):
        self.args, self.server, self.context = args, server, context
        self.honest, self.probe = Honest(server.port, min(120, context // 2)), Probe(server.port)
        self.rows, self.quiet, self.rates, self.control_cost, self.later = [], None, {}, 0.0, []

    async def measure_quiet(self):
        """Rate and others' processors while nothing else happens."""
        seconds = min(4.0, max(1.5, self.args.seconds / 2))
        machine, start = Machine(self.server), time.monotonic()
        await asyncio.sleep(seconds)
        end = time.monotonic()
        self.quiet = machine.cores() | {"rate": self.honest.rate(start, end), "gap": self.honest.longest_gap(start, end)}
        return self.quiet

    async def settle(self, allowed):
        end = time.monotonic() + SETTLE_S
        while self.server.rss() > allowed and time.monotonic() < end:
            await asyncio.sleep(0.2)
        return self.server.rss()

    async def measure(self, name, kinds, about):
        """The honest client next to these kinds of neighbours."""
        before, rss_before, changed = self.quiet, self.server.rss(), self.honest.changed
        self.server.forget_peak()
        children = [Child(k, self.server.port, self.args.seconds, 1000 * len(self.rows) + i, self.context) for i, k in enumerate(kinds)]
        await asyncio.gather(*(c.start() for c in children))
        self.server.leave_log(bool(about.get("mute")))
        machine, start = Machine(self.server, [c.process.pid for c in children]), time.monotonic()
        await asyncio.sleep(self.args.seconds)
        end, cores = time.monotonic(), machine.cores()
        self.server.leave_log(False)
        row = {"name": name, "rate": self.honest.rate(start, end), "cores": cores, "rss_before": rss_before}
        if about.get("later"):
            task = asyncio.gather(*(c.report() for c in children))
            self.later.append((row, task, len(self.server.lines)))
            row["report"] = merge([])
        else:
            row["report"] = merge(await asyncio.gather(*(c.report() for c in children)))
        row["peak"], row["rss_after"] = self.server.peak(), await self.settle(self.allowed(rss_before))
        done = time.monotonic()
        after = await self.measure_quiet()
        row |= {"gap": self.honest.longest_gap(start, done), "honest_changed": self.honest.changed - changed,
                "failures": self.honest.failed(start, done), "probes": self.probe.between(start, done),
                "quiet": statistics.mean([before["rate"], after["rate"]]), "seconds": done - start,
                "noise": min(cores[k] - statistics.mean([before[k], after[k]]) for k in ("others", "waited"))}
        return row

    @staticmethod
    def allowed(rss_before):
        return rss_before * RSS_SHARE + RSS_SLACK

    def judge_rate(self, row, about):
        """The wanted rate, and whether it was reached."""
        reference = self.rates.get(about.get("load"), row["quiet"])
        taken = min(1.0, row["cores"]["neighbours"])
        row["reference"], row["percent"] = reference, 100 * row["rate"] / max(reference, 1e-9)
        row["wanted"] = 100 * RATE_WANTED * (1 - (0 if row["name"] == "control" else self.control_cost * taken))
        return about.get("is_load") or row["percent"] >= row["wanted"]

    def judge(self, row, about):
        """What is wanted and missing."""
        report, missing = row["report"], []

        def want(good, text):
            if not good:
                missing.append(text)

        want(self.judge_rate(row, about), f"honest rate: wanted {row['wanted']:.0f} %, found {row['percent']:.0f} %")
        want(row["honest_changed"] + report["changed"] == 0,
             f"digests changed: wanted 0, found {row['honest_changed']} of the honest client, {report['changed']} of slow readers")
        want(not row["failures"], f"honest requests that failed: wanted 0, found {len(row['failures'])}: {row['failures'][:2]}")
        want(row["gap"] <= self.args.gap, f"longest gap: wanted at most {self.args.gap:g} s, found {row['gap']:.2f} s")
        fine = (200, 503) if about.get("full") else (200,)
        refused = [str(s) for s, _ in row["probes"] if s not in fine]
        want(not refused, f"new clients: wanted an answer, found {len(refused)} of {len(row['probes'])} without: {refused[:2]}")
        allowed = self.allowed(row["rss_before"])
        want(row["rss_after"] <= allowed,
             f"memory: wanted at most {allowed / MB:.0f} MB {SETTLE_S} s after, found {row['rss_after'] / MB:.0f} MB")
        want(report["lost"] == 0, f"answers lost: wanted 0, found {report['lost']}: {report['problems']}")
        want(report["wrong"] == 0, f"{report['wrong']} times: {report['problems']}")
        row["missing"] = missing

    async def next_to(self, name, kinds, about):
        for attempt in range(TRIES):
            row = await self.measure(name, kinds, about)
            if self.judge_rate(row, about) or row["noise"] < NOISE_CORES or about.get("later"):
                break
            print(f"  {name}: {row['percent']:.0f} %, with {row['noise']:.1f} processors lost to other programs: again", flush=True)
        row["tries"] = attempt + 1
        if name == "control":
            self.control_cost = max(0.0, 1 - row["rate"] / max(row["quiet"], 1e-9)) / max(0.2, row["cores"]["neighbours"])
        if about.get("is_load"):
            self.rates[name] = row["rate"]
        self.rows.append(row)
        self.judge(row, about)
        self.say(row)
        if not self.server.alive():
            raise SystemExit("the server has ended: " + "\n".join(self.server.lines[-20:]))

    def say(self, row):
        report = row["report"]
        statuses = " ".join(f"{s}:{n}" for s, n in report["statuses"].items()) or "none"
        print(f"{'FAIL' if row['missing'] else 'ok  '} {row['name']}: honest {row['rate']:.0f} events/s, {row['percent']:.0f} % of"
              f" {row['reference']:.0f} (wanted {row['wanted']:.0f} %), gap {row['gap']:.2f} s, digests changed"
              f" {row['honest_changed'] + report['changed']}, RSS {row['rss_before'] / MB:.0f} / {row['peak'] / MB:.0f} /"
              f" {row['rss_after'] / MB:.0f} MB, answers {statuses}, lost {report['lost']}", flush=True)
        for text in row["missing"]:
            print(f"       {text}", flush=True)

    async def await_later(self):
        """Neighbours whose streams are to be cut after 30 s."""
        for row, task, line in self.later:
            row["report"] = merge(await task)
            self.judge(row, NEIGHBOURS[row["name"]])
            cut = row["report"]["statuses"].get("cut", 0)
            said = [text for text in self.server.lines[line:] if CUT_LINE.search(text)]
            if cut == 0 or len(said) < cut:
                row["missing"].append(f"lines of the log that say why a stream was cut: wanted {max(1, cut)}, found {len(said)}")
            row["log"] = said[:3]
            print("at last:", flush=True)
            self.say(row)

    async def run(self, names):
        await self.honest.learn()
        tasks = [asyncio.ensure_future(self.honest.run()), asyncio.ensure_future(self.probe.run())]
        await asyncio.sleep(WARM_S)
        quiet = await self.measure_quiet()
        print(f"alone: {quiet['rate']:.0f} events/s, longest gap {quiet['gap']:.2f} s, RSS {self.server.rss() / MB:.0f} MB,"
              f" {self.server.threads()} threads, {self.server.files()} open files", flush=True)
        for name in names:
            await self.next_to(name, TOGETHER if name == "all" else [name],
                               {"mute": True, "load": "quick_readers"} if name == "all" else NEIGHBOURS[name])
        await self.await_later()
        self.honest.stopping = self.probe.stopping = True
        await asyncio.gather(*tasks)


def table(rows):
    heads = ("neighbour", "quiet/s", "honest/s", "of reference", "gap s", "changed", "before MB", "peak", "after", "answers", "lost",
             "cores server/hostile/others", "verdict")
    lines = [heads]
    for r in rows:
        report, c = r["report"], r["cores"]
        lines.append((r["name"], f"{r['quiet']:.0f}", f"{r['rate']:.0f}", f"{r['percent']:.0f} %", f"{r['gap']:.2f}",
                      str(r["honest_changed"] + report["changed"]), f"{r['rss_before'] / MB:.0f}", f"{r['peak'] / MB:.0f}",
                      f"{r['rss_after'] / MB:.0f}", " ".join(f"{s}:{n}" for s, n in report["statuses"].items()), str(report["lost"]),
                      f"{c['server']:.1f}/{c['neighbours']:.1f}/{c['others']:.1f}", f"{len(r['missing'])} missing" if r["missing"] else "ok"))
    widths = [max(len(line[i]) for line in lines) for i in range(len(heads))]
    for line in lines:
        print("  ".join(cell.ljust(w) for cell, w in zip(line, widths)).rstrip())


def arguments():
    names = [*NEIGHBOURS, "all"]
    p = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    p.add_argument("--seconds", type=float, default=10, help="next to each neighbour (10)")
    p.add_argument("--only", default="", help="these alone, with commas: " + ", ".join(names))
    p.add_argument("--server", default=BINARY, help="the program (build/invar)")
    p.add_argument("--model", default=str(TINY_MATH))
    p.add_argument("--tokenizer", default="", help="dummy weights, with the tokenizer of this directory")
    p.add_argument("--flags", default="", help="more flags of the server")
    p.add_argument("--gap", type=float, default=1.0, help="seconds between events that are allowed (1)")
    p.add_argument("--json", default="", help="the rows as JSON")
    args = p.parse_args()
    chosen = [n for n in args.only.split(",") if n] or names
    unknown = [n for n in chosen if n not in names]
    if unknown:
        p.error(f"--only: wanted names of {', '.join(names)}, found {', '.join(unknown)}")
    needed = {"control"} | ({"quick_readers"} if any(n == "all" or NEIGHBOURS[n].get("load") for n in chosen) else set())
    return args, [n for n in names if n in chosen or n in needed]


async def measure_all(args, names, server):
    context = await server.context()
    await server.warm(context)
    session = Session(args, server, context)
    try:
        await session.run(names)
    finally:
        table(session.rows)
    return session.rows


def main():
    args, names = arguments()
    if not os.access(args.server, os.X_OK):
        print(f"SKIPPED: hostile: needs {args.server}")
        return SKIPPED
    raise_file_limit()
    with tempfile.TemporaryDirectory() as folder:
        model = dummy_model(folder, args.tokenizer) if args.tokenizer else args.model
        flags = args.flags.split() + (["--load-format", "dummy"] if args.tokenizer else [])
        server = Served(args.server, model, *flags)
        begin = time.monotonic()
        try:
            rows = asyncio.run(measure_all(args, names, server))
        finally:
            code = server.stop()
        print(f"{len(rows)} neighbours in {time.monotonic() - begin:.0f} s; the server ended with {code}")
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps({"rows": rows, "exit": code}, indent=1))
    failed = [r["name"] for r in rows if r["missing"]]
    print(f"FAILED: {', '.join(failed)}" if failed else "all bounds are kept" if code == 0 else "FAILED: the server's end")
    return 1 if failed or code != 0 else 0


if __name__ == "__main__":
    sys.exit(main())
