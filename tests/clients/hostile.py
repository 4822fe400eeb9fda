"""Measures an honest client of a server while hostile clients attack it.

    hostile.py [--seconds S] [--only NAME,...] [--server BINARY] [--model DIR | --tokenizer DIR] [--flags "..."] [--json FILE]

The server runs tiny-math (or DIR, or dummy weights with the tokenizer of DIR). The honest client sends chat completions
with fixed seeds, one after the other, on one connection, and reads their streams. It is measured alone, then for S seconds
next to each hostile neighbour (hostile_neighbours.py), then next to several at once. It is measured alone again between
two neighbours, because other programs share the machine. The bounds for each neighbour:

- The honest rate is at least --rate (80 %) of the mean of the quiet rates before and after. Neighbours that generate many tokens
  are compared with `quick_readers`, who send the same requests and read without delay: as much of the share that those left.
- The digests of the honest client and of slow readers are those of quiet runs. No honest request fails.
- The gap between two events of the honest client, or between a request and its first event, is at most --gap seconds.
- New clients get an answer (`GET /health` twice a second, each on a new connection). 503 is allowed beyond the limit of
  connections only.
- 10 s after the traffic the server has grown by at most 10 % of its size at the start and 32 MB; over the whole session
  by at most 10 % and 96 MB; at any time by at most --peak MB.
- Every hostile request that is owed an answer gets one.

Neighbours are processes with `nice 19`, so that they get processor time that the server leaves. `control` is such a
process that computes all the time and sends nothing. Its effect on the honest rate is the scheduler's, so the wanted rate
of the other neighbours is lowered by it, in proportion to the processor time that they took. Where other programs took a
quarter of a processor or more, a gap that is too long or a rate below what is wanted is measured again, up to three
times. Other missed bounds of a repeated measurement still count.

Exit status: 0; 1 where a bound is missed; 77 without a server binary."""

import argparse
import asyncio
import contextlib
import json
import os
import pathlib
import re
import statistics
import sys
import tempfile
import time

import wire
from served import (BINARY, MB, QUICK, SLOW, STOPPED, TINY_MATH, Served, cpu_seconds, dummy_model, end_when_terminated,
                    machine_cpu_seconds, raise_file_limit)
from support import SKIPPED
from wire import Lost

HERE = pathlib.Path(__file__).resolve().parent
RSS_SHARE, RSS_SLACK, RSS_SLACK_IN_ALL = 0.1, 32 * MB, 96 * MB
SETTLE_S = 10
NOISE_CORES = 0.25  # that other programs took: then missed bounds of time are measured again
COST_MAX = 0.25  # of the wanted rate: what processor time of neighbours may explain
TRIES = 3
PROBE_S = 0.5
PAUSE_S = 0.2  # of the honest client between two requests, while its rate is not measured
WARM_S = 2
CUT_LINE = re.compile(r"\bcut\b|stall|not read|read nothing|slow reader|no progress", re.I)

# name: what differs from the default. load: the neighbour whose rate is the reference. is_load: any rate is good.
# unread_log: the log is not read for half of the time, then slowly. full: new clients may be refused with 503. cut: the
# log must name the reason why streams were cut.
NEIGHBOURS = {
    "control": {},
    "regexes": {},
    "schemas": {},
    "grammars": {},
    "bodies": {},
    "slow_senders": {},
    "quick_readers": {"is_load": True},
    "slow_readers": {"load": "quick_readers"},
    "log_flood": {"unread_log": True},
    "silent_connections": {},
    "resets": {},
    "half_open": {},
    "over_limit": {"full": True},
    "all": {"unread_log": True},
    "all_and_readers": {"unread_log": True, "load": "quick_readers"},
    "stopped_readers": {"load": "quick_readers", "cut": True},
}
ALL = ["regexes", "schemas", "grammars", "bodies", "slow_senders", "log_flood", "silent_connections", "resets"]
KINDS = {"all": ALL, "all_and_readers": [*ALL, "slow_readers"]}


class Honest:
    """The honest client, which keeps the time of every event. It never pauses while `hurry` is set."""

    def __init__(self, port, tokens):
        self.port, self.events, self.requests, self.changed, self.failures = port, [], [], 0, []
        self.bodies = [self.body(i, tokens) for i in range(6)]
        self.quiet, self.stopping, self.hurry = [], False, asyncio.Event()

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
        """Digests of quiet runs."""
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
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.hurry.wait(), PAUSE_S)
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
    """New clients, two a second."""

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
    """Processor time since a moment: of the server, of the neighbours, of other programs."""

    def __init__(self, server, children=()):
        self.server, self.children = server, children
        self.start = self._now()

    def _now(self):
        ours = sum(os.times()[:2])
        children = sum(cpu_seconds(p) for p in self.children)
        return (time.monotonic(), machine_cpu_seconds(), self.server.cpu(), ours, children)

    def cores(self):
        """How many processors each had on average."""
        elapsed, machine, server, ours, children = (b - a for a, b in zip(self.start, self._now()))
        return {"server": server / elapsed, "neighbours": max(0.0, children) / elapsed,
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
        self.rows, self.quiet, self.shares, self.control_cost, self.rss_start = [], None, {}, 0.0, server.rss()

    async def measure_quiet(self):
        """The honest client alone."""
        seconds = min(4.0, max(1.5, self.args.seconds / 2))
        self.honest.hurry.set()
        machine, start = Machine(self.server), time.monotonic()
        await asyncio.sleep(seconds)
        end = time.monotonic()
        self.honest.hurry.clear()
        self.quiet = machine.cores() | {"rate": self.honest.rate(start, end), "gap": self.honest.longest_gap(start, end)}
        return self.quiet

    async def settle(self, allowed):
        end = time.monotonic() + SETTLE_S
        while self.server.rss() > allowed and time.monotonic() < end:
            await asyncio.sleep(0.2)
        return self.server.rss()

    async def pass_time(self, about):
        """Waits next to a neighbour, and reads the log at the neighbour's pace."""
        for pace in (STOPPED, SLOW) if about.get("unread_log") else (QUICK, QUICK):
            self.server.log_pace = pace
            await asyncio.sleep(self.args.seconds / 2)

    async def measure(self, name, about, rss_before):
        """The honest client next to a neighbour."""
        before, changed, line = self.quiet, self.honest.changed, len(self.server.lines)
        self.server.forget_peak()
        children = [Child(k, self.server.port, self.args.seconds, 1000 * len(self.rows) + i, self.context)
                    for i, k in enumerate(KINDS.get(name, [name]))]
        await asyncio.gather(*(c.start() for c in children))
        self.honest.hurry.set()
        machine, start = Machine(self.server, [c.process.pid for c in children]), time.monotonic()
        await self.pass_time(about)
        end, cores = time.monotonic(), machine.cores()
        self.honest.hurry.clear()
        self.server.log_pace = QUICK
        report = merge(await asyncio.gather(*(c.report() for c in children)))
        row = {"name": name, "rate": self.honest.rate(start, end), "cores": cores, "rss_before": rss_before, "report": report,
               "peak": self.server.peak(), "rss_after": await self.settle(self.allowed(rss_before))}
        done, lines = time.monotonic(), len(self.server.lines)
        after = await self.measure_quiet()
        row |= {"gap": self.honest.longest_gap(start, done), "honest_changed": self.honest.changed - changed,
                "failures": self.honest.failed(start, done), "probes": self.probe.between(start, done),
                "quiet": statistics.mean([before["rate"], after["rate"]]), "seconds": done - start,
                "noise": max(cores["others"], before["others"], after["others"]),
                "log_after": len(self.server.lines) - lines,
                "cut_lines": [text for text in self.server.lines[line:] if CUT_LINE.search(text)]}
        return row

    def allowed(self, rss_before):
        return rss_before + self.rss_start * RSS_SHARE + RSS_SLACK

    def judge_rate(self, row, about):
        """The wanted rate, and whether it was reached."""
        reference = row["quiet"] * self.shares.get(about.get("load"), 1)
        taken = min(1.0, row["cores"]["neighbours"])
        row["reference"], row["percent"] = reference, 100 * row["rate"] / max(reference, 1e-9)
        row["wanted"] = self.args.rate * (1 - (0 if row["name"] == "control" else min(COST_MAX, self.control_cost * taken)))
        return about.get("is_load") or row["percent"] >= row["wanted"]

    def judge(self, row, about):
        """Missed bounds: of time, which other programs may disturb, and others."""
        report, late, missing = row["report"], [], []

        def want(good, text, out=missing):
            if not good:
                out.append(text)

        want(self.judge_rate(row, about), f"honest rate: wanted {row['wanted']:.0f} %, found {row['percent']:.0f} %", late)
        want(row["gap"] <= self.args.gap, f"longest gap: wanted at most {self.args.gap:g} s, found {row['gap']:.2f} s", late)
        want(row["honest_changed"] + report["changed"] == 0,
             f"digests changed: wanted 0, found {row['honest_changed']} of the honest client, {report['changed']} of slow readers")
        want(not row["failures"], f"honest requests that failed: wanted 0, found {len(row['failures'])}: {row['failures'][:2]}")
        fine = (200, 503) if about.get("full") else (200,)
        refused = [str(s) for s, _ in row["probes"] if s not in fine]
        want(not refused, f"new clients: wanted an answer, found {len(refused)} of {len(row['probes'])} without: {refused[:2]}")
        allowed, peak = self.allowed(row["rss_before"]), row["rss_before"] + self.args.peak * MB
        want(row["rss_after"] <= allowed,
             f"memory: wanted at most {allowed / MB:.0f} MB {SETTLE_S} s after, found {row['rss_after'] / MB:.0f} MB")
        want(row["peak"] <= peak, f"memory: wanted never more than {peak / MB:.0f} MB, found {row['peak'] / MB:.0f} MB")
        if about.get("unread_log"):
            want(row["log_after"] > 0, "log: wanted lines after it is read again, found none")
        if about.get("cut"):
            cut, lines = report["statuses"].get("cut", 0), len(row["cut_lines"])
            want(cut > 0 and lines >= cut, f"lines of the log that say why a stream was cut: wanted {max(1, cut)}, found {lines}")
        want(report["lost"] == 0, f"answers lost: wanted 0, found {report['lost']}: {report['problems']}")
        want(report["wrong"] == 0, f"{report['wrong']} times: {report['problems']}")
        return late, missing

    async def next_to(self, name):
        about, missing, rss_before = NEIGHBOURS[name], [], self.server.rss()
        for attempt in range(TRIES):
            row = await self.measure(name, about, rss_before)
            if not self.server.alive():
                raise SystemExit(f"{name}: the server has ended: " + "\n".join(self.server.lines[-20:]))
            late, others = self.judge(row, about)
            missing += others
            if not late or row["noise"] < NOISE_CORES or attempt + 1 == TRIES:
                break
            print(f"  {name}: {late[0]}, while other programs took {row['noise']:.1f} processors: again", flush=True)
        row["missing"], row["tries"] = list(dict.fromkeys(late + missing)), attempt + 1
        if name == "control":
            self.control_cost = max(0.0, 1 - row["rate"] / max(row["quiet"], 1e-9)) / max(0.2, row["cores"]["neighbours"])
        if about.get("is_load"):
            self.shares[name] = row["rate"] / max(row["quiet"], 1e-9)
        self.rows.append(row)
        self.say(row)

    def say(self, row):
        report = row["report"]
        statuses = " ".join(f"{s}:{n}" for s, n in report["statuses"].items()) or "none"
        print(f"{'FAIL' if row['missing'] else 'ok  '} {row['name']}: honest {row['rate']:.0f} events/s, {row['percent']:.0f} % of"
              f" {row['reference']:.0f} (wanted {row['wanted']:.0f} %), gap {row['gap']:.2f} s, digests changed"
              f" {row['honest_changed'] + report['changed']}, RSS {row['rss_before'] / MB:.0f} / {row['peak'] / MB:.0f} /"
              f" {row['rss_after'] / MB:.0f} MB, answers {statuses}, lost {report['lost']}", flush=True)
        for text in row["missing"]:
            print(f"       {text}", flush=True)

    async def run(self, names):
        await self.honest.learn()
        tasks = [asyncio.ensure_future(self.honest.run()), asyncio.ensure_future(self.probe.run())]
        await asyncio.sleep(WARM_S)
        quiet = await self.measure_quiet()
        print(f"alone: {quiet['rate']:.0f} events/s, longest gap {quiet['gap']:.2f} s, RSS {self.server.rss() / MB:.0f} MB,"
              f" {self.server.threads()} threads, {self.server.files()} open files", flush=True)
        for name in names:
            await self.next_to(name)
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
    names = list(NEIGHBOURS)
    p = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    p.add_argument("--seconds", type=float, default=10, help="next to each neighbour (10)")
    p.add_argument("--only", default="", help="these alone, with commas: " + ", ".join(names))
    p.add_argument("--server", default=BINARY, help="the program (build/invar)")
    p.add_argument("--model", default=str(TINY_MATH))
    p.add_argument("--tokenizer", default="", help="dummy weights, with the tokenizer of this directory")
    p.add_argument("--flags", default="", help="more flags of the server")
    p.add_argument("--rate", type=float, default=80, help="percent of its rate that the honest client keeps (80)")
    p.add_argument("--gap", type=float, default=1.0, help="seconds between events that are allowed (1)")
    p.add_argument("--peak", type=float, default=1024, help="MB that the server may grow by, next to a neighbour (1024)")
    p.add_argument("--json", default="", help="the rows as JSON")
    args = p.parse_args()
    chosen = [n for n in args.only.split(",") if n] or names
    unknown = [n for n in chosen if n not in names]
    if unknown:
        p.error(f"--only: wanted names of {', '.join(names)}, found {', '.join(unknown)}")
    needed = {"control"} | ({"quick_readers"} if any(NEIGHBOURS[n].get("load") for n in chosen) else set())
    return args, [n for n in names if n in chosen or n in needed]


async def measure_all(args, names, server):
    """The rows, and missed bounds of the whole session."""
    context = await server.context()
    await server.warm(context)
    session = Session(args, server, context)
    try:
        await session.run(names)
    finally:
        table(session.rows)
    allowed, found = session.rss_start * (1 + RSS_SHARE) + RSS_SLACK_IN_ALL, server.rss()
    print(f"memory in all: {session.rss_start / MB:.0f} MB at the start, {found / MB:.0f} MB at the end")
    missing = [f"memory at the end: wanted at most {allowed / MB:.0f} MB, found {found / MB:.0f} MB"] if found > allowed else []
    return session.rows, missing


def main():
    args, names = arguments()
    if not os.access(args.server, os.X_OK):
        print(f"SKIPPED: hostile: needs {args.server}")
        return SKIPPED
    raise_file_limit()
    end_when_terminated()
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        model = dummy_model(folder, args.tokenizer) if args.tokenizer else args.model
        flags = args.flags.split() + (["--load-format", "dummy"] if args.tokenizer else [])
        server = Served(args.server, model, *flags)
        try:
            rows, missing = asyncio.run(measure_all(args, names, server))
        finally:
            code = server.stop()
    if code != 0:
        missing.append(f"exit status of the server after SIGTERM: wanted 0, found {code}")
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps({"rows": rows, "missing": missing}, indent=1))
    failed = [r["name"] for r in rows if r["missing"]]
    print(f"{len(rows)} neighbours in {time.monotonic() - begin:.0f} s")
    print("\n".join([*missing, f"FAILED: {', '.join(failed) or 'the session'}" if failed or missing else "all bounds are kept"]))
    return 1 if failed or missing else 0


if __name__ == "__main__":
    sys.exit(main())
