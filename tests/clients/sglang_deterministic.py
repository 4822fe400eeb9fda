"""The requests and assertions of SGLang's deterministic modes, with our own driver: single, mixed, prefix, radix_cache;
and batches, cumulative streams, scores of prompts and aborts of its native API."""

import json
import random
import threading
import urllib.request
from concurrent.futures import ThreadPoolExecutor

from support import ADMIN_KEY, API_KEY, URL, call, check, events, main, post

SHORT = "2 + 2 ="
ONE = "What is 12 + 30? Say it."
# A vocabulary of a toy model: about a token for each character here.
LONG = " ".join(f"{a} + {b} = {a + b}." for a, b in ((i * 7 % 50, i * 3 % 50) for i in range(60)))


def sampling(**more):
    return {"temperature": 0, "max_new_tokens": 24, "frequency_penalty": 0, "presence_penalty": 0} | more


def generate(body):
    return post("/generate", body)


def flush():
    """Only with the admin key; without it the modes run on a warm cache."""
    if ADMIN_KEY:
        status, answer = call("POST", "/flush_cache", None, ADMIN_KEY)
        check(status == 200, answer)


def one_answer(bodies):
    """Sends all at once; the distinct texts among the answers."""
    with ThreadPoolExecutor(max_workers=32) as pool:
        return [r["text"] if isinstance(r, dict) else [one["text"] for one in r] for r in pool.map(generate, bodies)]


def test_single():
    wild = sampling(temperature=1, sampling_seed=42)
    for params in (sampling(), wild):
        texts = set()
        for batch in range(1, 17):
            for r in generate({"text": [ONE] * batch, "sampling_params": params}):
                texts.add(r["text"])
        check(len(texts) == 1, texts)
    seeds = {r["invar"]["digest"] for r in (generate({"text": ONE, "sampling_params": sampling(
        temperature=5, sampling_seed=s)}) for s in range(4))}
    check(len(seeds) == 4, "a control: other seeds, other answers")


def test_mixed():
    texts = {SHORT: set(), ONE: set(), LONG[:900]: set()}
    rng = random.Random(1)
    for _ in range(12):
        batch = [rng.choice(list(texts)) for _ in range(rng.randint(1, 12))]
        rng.shuffle(batch)
        answers = generate({"text": batch, "sampling_params": sampling(temperature=1, sampling_seed=7)})
        for prompt, r in zip(batch, answers):
            texts[prompt].add(r["text"])
    check(all(len(found) == 1 for found in texts.values()), texts)


def test_prefix():
    lengths = [1, 255, 511, 900]
    flush()
    texts = {n: set() for n in lengths}
    rng = random.Random(2)
    for _ in range(10):
        batch = [rng.choice(lengths) for _ in range(rng.randint(1, 10))]
        for n, r in zip(batch, generate({"text": [LONG[:n] for n in batch], "sampling_params": sampling()})):
            texts[n].add(r["text"])
    check(all(len(found) == 1 for found in texts.values()), texts)


def test_radix_cache():
    rng = random.Random(3)
    ids = [rng.randint(10, 600) for _ in range(64)]
    params = {"temperature": 1, "sampling_seed": 42, "max_new_tokens": 100, "ignore_eos": True}
    flush()
    first = generate({"input_ids": ids, "sampling_params": params, "return_logprob": True})
    check(len(first["output_ids"]) == 100)
    longer = ids + first["output_ids"][:-1]
    one = {"temperature": 1, "sampling_seed": 42, "max_new_tokens": 1}
    cached = generate({"input_ids": longer, "sampling_params": one, "return_logprob": True})
    if ADMIN_KEY:
        check(cached["meta_info"]["cached_tokens"] > 0, cached["meta_info"])
        flush()
    cold = generate({"input_ids": longer, "sampling_params": one, "return_logprob": True})
    check(not ADMIN_KEY or cold["meta_info"]["cached_tokens"] == 0)
    check(cached["output_ids"] == cold["output_ids"])
    a, b = (r["meta_info"]["output_token_logprobs"][0][0] for r in (cached, cold))
    check(a == b, a, b)


def test_scores_are_those_of_generation():
    """Scored as a prompt, tokens have the log-probabilities of their generation."""
    ids = [17, 289, 220, 17, 265]
    params = {"temperature": 1, "sampling_seed": 3, "max_new_tokens": 40, "ignore_eos": True}
    first = generate({"input_ids": ids, "sampling_params": params, "return_logprob": True})
    whole = ids + first["output_ids"]
    score = {"temperature": 1, "max_new_tokens": 0}
    again = generate({"input_ids": [whole, whole], "sampling_params": score, "return_logprob": True,
                      "logprob_start_len": 0})
    made = [t[:2] for t in first["meta_info"]["output_token_logprobs"]]
    for r in again:
        listed = r["meta_info"]["input_token_logprobs"]
        check(listed[0][0] is None and [t[1] for t in listed] == whole)
        check([t[:2] for t in listed[len(ids):]] == made)
        check(r["output_ids"] == [] and r["meta_info"]["finish_reason"]["type"] == "length")
    part = generate({"input_ids": whole, "sampling_params": score, "return_logprob": True, "logprob_start_len": 10})
    listed = part["meta_info"]["input_token_logprobs"]
    check(listed[0] == [None, whole[10], None] and listed[1:] == again[0]["meta_info"]["input_token_logprobs"][11:])


def test_order_and_forms():
    prompts = [f"{i} + 1 =" for i in range(20)]
    batch = generate({"text": prompts, "sampling_params": [sampling(max_new_tokens=1 + i % 5) for i in range(20)]})
    for i, r in enumerate(batch):
        check(len(r["output_ids"]) <= 1 + i % 5)
        alone = generate({"text": prompts[i], "sampling_params": sampling(max_new_tokens=1 + i % 5)})
        check(isinstance(alone, dict) and alone["text"] == r["text"])
    several = generate({"text": SHORT, "sampling_params": sampling(n=3, temperature=2, sampling_seed=5)})
    check(len(several) == 3 and [r["invar"]["seed"] for r in several] == [5, 6, 7])
    tops = generate({"text": SHORT, "sampling_params": sampling(max_new_tokens=2), "return_logprob": True,
                     "top_logprobs_num": 2, "return_text_in_logprobs": True, "rid": "mine"})["meta_info"]
    check(tops["id"] == "mine" and len(tops["output_top_logprobs"][0]) == 2)
    check(tops["output_token_logprobs"][0] == tops["output_top_logprobs"][0][0], tops)


def test_stream_is_cumulative():
    body = {"text": ONE, "sampling_params": sampling(), "return_logprob": True}
    whole = generate(body)
    text = ""
    for event in events("/generate", body | {"stream": True}):
        check(event["text"].startswith(text))
        text = event["text"]
    check(text == whole["text"] and event["output_ids"] == whole["output_ids"])
    check(event["meta_info"]["finish_reason"] == whole["meta_info"]["finish_reason"])
    last = {}
    for event in events("/generate", {"text": [ONE, SHORT], "sampling_params": sampling(), "stream": True}):
        last[event["index"]] = event["text"]
    check(last[0] == whole["text"] and len(last) == 2)


def test_numbers_for_each_prompt():
    body = {"text": [SHORT, SHORT], "sampling_params": sampling(), "return_logprob": True}
    both = generate(body | {"top_logprobs_num": [2, 0], "logprob_start_len": [0, -1]})
    alone = [generate(body | {"text": SHORT, "top_logprobs_num": n, "logprob_start_len": at}) for n, at in ((2, 0), (0, -1))]
    for one, other in zip(both, alone):
        kept = lambda meta: {k: v for k, v in meta.items() if "logprobs" in k}
        check(kept(one["meta_info"]) == kept(other["meta_info"]), one)
    check("output_top_logprobs" in both[0]["meta_info"] and "output_top_logprobs" not in both[1]["meta_info"])


def test_stop_is_kept_on_demand():
    whole = generate({"text": SHORT, "sampling_params": sampling()})["text"]
    stop = whole[3:5]
    cut = generate({"text": SHORT, "sampling_params": sampling(stop=stop)})
    kept = generate({"text": SHORT, "sampling_params": sampling(stop=[stop], no_stop_trim=True)})
    check(kept["text"] == cut["text"] + stop and cut["meta_info"]["finish_reason"]["matched"] == stop)


def test_refusals():
    for body, name in (
        ({"text": "a", "input_ids": [1]}, "text"),
        ({"text": ["a", "b"], "top_logprobs_num": [1], "return_logprob": True}, "top_logprobs_num"),
        ({"text": ["a", "b"], "top_logprobs_num": [1, 21], "return_logprob": True}, "top_logprobs_num"),
        ({"text": "a", "logprob_start_len": 0.5, "return_logprob": True}, "logprob_start_len"),
        ({"text": "a", "sampling_params": {"ebnf": 1}}, "sampling_params.ebnf"),
        ({"text": "a", "sampling_params": {"ebnf": "a*"}}, "grammar"),
        ({"text": "a", "sampling_params": {"top_q": 1}}, "sampling_params.top_q"),
        ({"input_ids": [1, -1]}, "input_ids"),
        ({"input_ids": [10**6]}, "input_ids"),
        ({"text": "a", "logprob_start_len": 100, "return_logprob": True}, "logprob_start_len"),
        ({"text": []}, "text"),
    ):
        status, answer = call("POST", "/generate", body)
        check(status == 400 and answer["error"]["param"] == name, status, answer)


def test_many_at_once():
    """Many equal requests among decoys: one answer."""
    rng = random.Random(4)
    asked = {"text": ONE, "sampling_params": sampling(temperature=1, sampling_seed=11)}
    decoys = [{"text": LONG[: rng.randint(1, 600)], "sampling_params": sampling(
        temperature=2, max_new_tokens=rng.randint(1, 30))} for _ in range(60)]
    bodies = [asked] * 60 + decoys
    rng.shuffle(bodies)
    answers = one_answer(bodies)
    check(len({a for a, b in zip(answers, bodies) if b is asked}) == 1)


def test_abort():
    if not ADMIN_KEY:
        return
    body = {"text": SHORT, "rid": "long-one", "sampling_params": {"max_new_tokens": 2000, "ignore_eos": True}}
    found = []
    thread = threading.Thread(target=lambda: found.append(generate(body)))
    thread.start()
    for _ in range(500):
        status, answer = call("POST", "/abort_request", {"rid": "long-one"}, ADMIN_KEY)
        check(status == 200)
        if answer["aborted"]:
            break
    thread.join()
    check(found[0]["meta_info"]["finish_reason"]["type"] == "abort", found[0]["meta_info"])


def test_pause_holds():
    if not ADMIN_KEY:
        return
    call("POST", "/pause_generation", {"mode": "in_place"}, ADMIN_KEY)
    found = []
    thread = threading.Thread(target=lambda: found.append(generate({"text": SHORT, "sampling_params": sampling()})))
    thread.start()
    thread.join(0.3)
    check(not found)
    status, _ = call("GET", "/flush_cache", None, ADMIN_KEY)
    call("POST", "/continue_generation", {}, ADMIN_KEY)
    thread.join()
    check(len(found) == 1 and status != 200, status)


def test_weights_are_replaced():
    """Reloads the same weights: another version, the same answers; refused while requests run."""
    if not ADMIN_KEY:
        return
    info = call("GET", "/get_model_info")[1]
    asked = {"text": ONE, "sampling_params": sampling()}
    before = generate(asked)
    status, answer = call("POST", "/update_weights_from_disk", {"model_path": "/nowhere"}, ADMIN_KEY)
    check(status == 404 and not answer["success"], status, answer)
    check(generate(asked)["meta_info"]["weight_version"] == before["meta_info"]["weight_version"])
    status, answer = call("POST", "/update_weights_from_disk", {"model_path": info["model_path"]}, ADMIN_KEY)
    check(status == 200 and answer["success"], status, answer)
    after = generate(asked)
    check(int(after["meta_info"]["weight_version"]) == int(before["meta_info"]["weight_version"]) + 1)
    check(after["meta_info"]["cached_tokens"] == 0, "cached prefixes are forgotten")
    named = {"model_path": info["model_path"], "weight_version": "step 7"}
    status, answer = call("POST", "/update_weights_from_disk", named, ADMIN_KEY)
    check(status == 200 and answer["weight_version"] == "step 7", answer)
    check(generate(asked)["meta_info"]["weight_version"] == "step 7")
    check(call("GET", "/get_weight_version")[1]["weight_version"] == "step 7")
    call("POST", "/update_weights_from_disk", {"model_path": info["model_path"]}, ADMIN_KEY)
    check(generate(asked)["meta_info"]["weight_version"] == str(int(after["meta_info"]["weight_version"]) + 2))
    check(after["invar"]["digest"] == before["invar"]["digest"])
    check(after["system_fingerprint"] == before["system_fingerprint"])


def test_information():
    for path in ("/get_model_info", "/server_info", "/get_server_info", "/get_weight_version", "/health_generate",
                 "/health", "/version", "/v1/models"):
        status, answer = call("GET", path)
        check(status == 200 and isinstance(answer, dict), path, status, answer)
    check(call("GET", "/get_server_info")[1]["disable_radix_cache"] is False)


def test_leaving_client():
    """A client that leaves in the middle of a stream changes nothing for others."""
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {API_KEY}"}
    body = {"text": SHORT, "stream": True, "sampling_params": {"max_new_tokens": 1500, "ignore_eos": True}}
    quiet = generate({"text": ONE, "sampling_params": sampling()})["text"]
    for _ in range(8):
        request = urllib.request.Request(URL + "/generate", json.dumps(body).encode(), headers, method="POST")
        with urllib.request.urlopen(request, timeout=60) as response:
            response.readline()
    check(generate({"text": ONE, "sampling_params": sampling()})["text"] == quiet)


main(*[f for name, f in sorted(globals().items()) if name.startswith("test_")])
