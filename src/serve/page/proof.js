/* proof.js: runs one request in many ways, and compares each with the quiet run, token by token and bit by bit. */

/* Longer than a page of the KV cache, so that pages can be cached and cut. */
const longExample =
    'Omar has 12 apples. Then Omar buys 9 more. Omar gives away 6. Then Omar buys 14 more. Omar gives away 11. ' +
    'Then Omar buys 7 more. Omar gives away 8. Then Omar buys 5 more. How many apples are left for Omar?';

const proof = {
  before: [],
  like: {},
  rows: [],
  quiet: null,
  flushes: false, /* whether the server lets this page empty its cache */
  abort: null
};

/* The decoys. Each is one HTTP request with many prompts: browsers open at most six connections. */
const decoyTexts = [
  'Ben has 51 stickers. Ben gives 17 to Ida and buys 30 more. How many stickers has Ben?',
  'What is 64 - 38?',
  'A train has 8 cars with 52 seats each. How many seats are there?',
  'Write the numbers from one to twenty.',
  'Lea reads 14 pages a day. How many pages in 9 days?',
  'What is 7 * 13 + 5?',
  'There are 96 eggs in boxes of 12. How many boxes?',
  'Count down from thirty.',
];
function decoyBody(count, tokens, from) {
  const prompt = Array.from(
      {length: count},
      (_, i) =>
          decoyTexts[(from + i) % decoyTexts.length] + ' '.repeat(1 + Math.floor((from + i) / decoyTexts.length)));
  return {
    model: server.model,
    prompt,
    temperature: 1,
    seed: 1000 + from,
    max_tokens: tokens,
    ignore_eos: true,
    stream: true
  };
}
/* Prompts too long for one step, so that they are split into chunks. */
function longBody(count) {
  const most = Math.max(64, Math.min(1500, Math.floor((server.maxLength || 2048) * 0.7)));
  const prompt =
      Array.from({length: count}, (_, i) => Array.from({length: most}, (_, k) => 10 + ((k * 7 + i * 31) % 200)));
  return {model: server.model, prompt, temperature: 1, seed: 2000, max_tokens: 32, ignore_eos: true, stream: true};
}

/* Starts decoys; they end when `stop` is called. */
function startDecoys(bodies) {
  const abort = new AbortController();
  const failed = [];
  for (const body of bodies) {
    send('/v1/completions', body, {signal: abort.signal})
        .then(async (r) => {
          for await (const line of lines(r))
            if (line.startsWith('data: [DONE]')) break;
        })
        .catch((e) => e.name !== 'AbortError' && failed.push(e.message));
  }
  return {stop: () => abort.abort(), failed};
}
const wait = (ms) => new Promise((done) => setTimeout(done, ms));

/* ---- the ways ---- */

/* Refused while requests run: cancelled decoys may need another step. */
async function flush() {
  for (let i = 0;; i++) {
    try {
      return await send('/flush_cache', {}, {admin: true});
    } catch (e) {
      if (e.status !== 409 || i === 20) throw e;
      await wait(50);
    }
  }
}
/* Empties the cache if this page may: servers without keys on this machine, or with --allow-flush, need none. */
async function mayFlush() {
  try {
    await flush();
    return true;
  } catch (e) {
    return e.status !== 401 && e.status !== 403; /* Cold shows another reason */
  }
}
async function plainRun(row, options) {
  const a = newAnswer('/v1/chat/completions', proof.body);
  row.answer = a;
  return ask(a, {signal: proof.abort.signal, changed: () => drawSoon(row), ...options});
}
async function amid(row, bodies, run) {
  const decoys = startDecoys(bodies);
  try {
    for (let i = 0; i < 40 && row.peak < 2; i++) {
      await notePeak(row);
      await wait(15);
    }
    return await (run || plainRun)(row);
  } finally {
    decoys.stop();
    if (decoys.failed.length) row.note = 'some decoys failed: ' + decoys.failed[0];
  }
}
async function runningNow() {
  try {
    return (await readMetrics()).running;
  } catch {
    return 0;
  }
}
/* Two loops may run at once: no old value is kept across the wait. */
async function notePeak(row) {
  const now = await runningNow();
  row.peak = Math.max(row.peak, now);
}
/* The reference's token ids, if the server returned them. */
function quietIds() {
  const {promptIds, tokens} = proof.quiet;
  return promptIds && tokens.every((t) => t.id !== undefined) ? tokens.map((t) => t.id) : null;
}
function asCompletion(ids, most) {
  const {messages, chat_template_kwargs, logprobs, top_logprobs, max_tokens, ...rest} = proof.body;
  return {...rest, prompt: ids, max_tokens: most, logprobs: 0, return_token_ids: true};
}
const penalties = () => ['presence_penalty', 'frequency_penalty', 'repetition_penalty'].some((p) => {
  const value = proof.quiet.invar?.parameters?.[p] ?? proof.body[p];
  return value !== undefined && value !== (p === 'repetition_penalty' ? 1 : 0);
});
const most = () => proof.quiet.invar?.parameters?.max_tokens ?? proof.body.max_tokens;

const ways = [
  {name: 'Quiet', what: 'alone on the server: the reference', quiet: true, run: (row) => plainRun(row)},
  {name: 'Warm', what: 'again: its prompt is now in the prefix cache', run: (row) => plainRun(row)},
  {
    name: 'Cold',
    what: 'after emptying the prefix cache',
    skip: () => !proof.flushes && (keys.admin ? 'the admin key is not accepted' : 'needs the admin key'),
    run: async (row) => {
      await flush();
      return plainRun(row);
    }
  },
  {name: 'Whole', what: 'not streamed: one response at the end', run: (row) => plainRun(row, {stream: false})},
  {
    name: 'As tokens',
    what: 'the prompt’s token ids through /v1/completions',
    skip: () => !quietIds() && 'the server did not return the token ids',
    run: (row) => {
      row.answer = newAnswer('/v1/completions', asCompletion(proof.quiet.promptIds, most()));
      return ask(row.answer, {signal: proof.abort.signal, changed: () => drawSoon(row)});
    }
  },
  {
    name: 'Sibling',
    what: 'the second of three answers of one request',
    skip: () => BigInt(proof.body.seed) < 1n && 'needs a seed above 0',
    run: (row) => plainRun(row, {stream: false, index: 1, more: {n: 3, seed: String(BigInt(proof.body.seed) - 1n)}})
  },
  {
    name: 'Concurrent',
    what: () => `in the middle of ${proof.decoys} others`,
    run: (row) => amid(row, [decoyBody(proof.decoys, proof.span, 0)])
  },
  {
    name: 'Chunked',
    what: () => (proof.flushes ? 'uncached, ' : '') + 'next to long prompts that fill steps',
    run: async (row) => {
      if (proof.flushes) await flush();
      return amid(row, [longBody(4)]);
    }
  },
  {name: 'Shuffled', what: 'four copies and others, in a random order', run: shuffled},
  {
    name: 'Resumed',
    what: 'its first half given as prompt, the rest generated',
    skip: () => !quietIds()           ? 'the server did not return the token ids' :
        proof.quiet.tokens.length < 4 ? 'the answer is too short' :
        penalties()                   ? 'penalties count the prompt differently' :
        proof.body.stop               ? 'a stop string may cross the cut' :
                                        false,
    run: resumed
  },
  {
    name: 'Control',
    what: 'one space more in the prompt: it must differ',
    control: true,
    run: (row) => {
      const messages = proof.body.messages.slice();
      const last = messages.pop();
      row.answer = newAnswer(
          '/v1/chat/completions', {...proof.body, messages: [...messages, {...last, content: last.content + ' '}]});
      return ask(row.answer, {signal: proof.abort.signal, changed: () => drawSoon(row)});
    }
  },
];

/* Another server of the model, asked by this browser, without keys. Its description of itself is not verified; its
 * bits are compared here. */
class Skipped extends Error {}
function peerWay(url) {
  const way = {
    name: 'Peer',
    said: '',
    what: () => url.replace(/^https?:\/\//, '') + (way.said && ': ' + way.said),
    run: async (row) => {
      const info = await getJson(url + '/server_info');
      const ranks = plural(info.tp_size, 'rank');
      way.said = info.device === 'cpu' ? `${ranks}, ${plural(info.threads, 'thread')}, ${info.isa}` :
                                         `${ranks}, ${info.gpu}`;
      if (info.fingerprint !== proof.quiet.fingerprint) throw new Skipped('computes something else: ' + info.fingerprint);
      const {model, ...body} = proof.body; /* it may have another name there */
      row.answer = newAnswer(url + '/v1/chat/completions', body);
      return ask(row.answer, {signal: proof.abort.signal, changed: () => drawSoon(row)});
    }
  };
  return way;
}

async function shuffled(row) {
  const jobs = [];
  for (let i = 0; i < 4; i++)
    jobs.push(async (answers) => {
      const a = newAnswer('/v1/chat/completions', proof.body);
      answers.push(a);
      row.answer ??= a;
      await ask(a, {signal: proof.abort.signal, changed: () => drawSoon(row)});
    });
  const third = Math.max(1, Math.floor(proof.decoys / 2));
  let decoys = [];
  jobs.push(async () => void decoys.push(startDecoys([decoyBody(third, proof.span, 40)])));
  for (let i = jobs.length - 1; i > 0; i--) {
    const k = Math.floor(Math.random() * (i + 1));
    [jobs[i], jobs[k]] = [jobs[k], jobs[i]];
  }
  const answers = [];
  await Promise.all(jobs.map(async (job) => {
    await wait(Math.random() * 30);
    await job(answers);
  }));
  decoys.forEach((d) => d.stop());
  const odd = answers.find((a) => a.state !== 'done' || a.digest !== answers[0].digest);
  row.note = odd ? 'the copies differ' : '4 of 4 copies equal';
  return (row.answer = odd || answers[0]);
}

async function resumed(row) {
  const half = Math.floor(proof.quiet.tokens.length / 2);
  const given = proof.quiet.tokens.slice(0, half);
  const limit = most();
  const body = asCompletion([...proof.quiet.promptIds, ...given.map((t) => t.id)], limit ? limit - half : undefined);
  row.answer = newAnswer('/v1/completions', body, given);
  row.note = `from token ${half + 1}`;
  return ask(row.answer, {signal: proof.abort.signal, changed: () => drawSoon(row)});
}

/* ---- running ---- */

function proveAnswer(answer) {
  const messages = answer.body.messages;
  proof.before = messages.slice(0, -1);
  const {model, messages: m, logprobs, top_logprobs, return_token_ids, seed, ...like} = answer.body;
  proof.like = like;
  $('proof-prompt').value = messages.at(-1).content;
  $('proof-seed').value = answer.invar?.seed ?? seed ?? 7;
  const t = like.temperature ?? answer.invar?.parameters?.temperature;
  $('proof-temperature').value = t === undefined ? '' : plain(t);
  $('proof-max').value = like.max_tokens || Math.max(64, answer.tokens.length);
  showContext();
}
function showContext() {
  const names = Object.keys(proof.like).filter((k) => !['temperature', 'max_tokens'].includes(k));
  const parts = [];
  if (proof.before.length) parts.push('after ' + plural(proof.before.length, 'earlier message'));
  if (names.length) parts.push('with ' + names.map((n) => n.replaceAll('_', '-')).join(', ') + ' as in Chat');
  fill(
      $('proof-context'), parts.length ? parts.join(', ') + ' ' : '',
      parts.length ?
          el('button', {type: 'button', onclick: () => ((proof.before = []), (proof.like = {}), showContext())},
             'drop') :
          '');
}

async function runProof() {
  if (proof.abort) return proof.abort.abort();
  if (!$('proof-prompt').value.trim()) return $('proof-prompt').focus();
  if (!checkFields(['proof-seed', 'proof-temperature', 'proof-max', 'proof-decoys'].map($))) return;
  const {temperature: t, max_tokens: m, ...like} = proof.like;
  proof.body = {
    model: server.model,
    messages: [...proof.before, {role: 'user', content: $('proof-prompt').value}],
    ...like,
    seed: $('proof-seed').value.trim(),
    max_tokens: Number($('proof-max').value) || 96,
    logprobs: true,
    top_logprobs: 0,
    return_token_ids: true,
  };
  if ($('proof-temperature').value !== '') proof.body.temperature = Number($('proof-temperature').value);
  proof.decoys = Number($('proof-decoys').value) || Math.min(24, Math.max(1, server.together - 1));
  proof.span = Math.max(32, Math.min(768, (server.maxLength || 1024) - 128)); /* cancelled when the row ends */
  proof.quiet = null;
  proof.abort = new AbortController();
  const all = [...ways.slice(0, -1), ...server.peers.map(peerWay), ways.at(-1)];
  proof.rows = all.map((way) => ({way, state: 'waiting', answer: null, note: '', peak: 0}));
  $('proof-run').textContent = 'Stop';
  $('save-receipt').disabled = $('save-proof').disabled = true;
  fill($('replay'));
  fill($('rows'), proof.rows.map((row) => (row.item = el('li', {class: 'run'}))));
  proof.rows.forEach(drawRow);
  for (const row of proof.rows) {
    if (proof.abort.signal.aborted) break;
    await runRow(row);
    if (row.way.quiet && row.state === 'failed') break;
  }
  const stopped = proof.abort.signal.aborted;
  proof.abort = null;
  $('proof-run').textContent = 'Run again';
  showVerdict(stopped);
  $('save-proof').disabled = !proof.quiet;
  $('save-receipt').disabled = !proof.quiet?.invar?.receipt;
  poll();
  if (proof.quiet?.invar?.receipt) $('replay').textContent = 'invar replay receipt.json MODEL';
}

async function runRow(row) {
  const reason = row.way.skip?.();
  if (reason) {
    row.state = 'skipped';
    row.note = reason;
    return drawRow(row);
  }
  for (let i = 0; i < 20 && (await runningNow()) > 0; i++) await wait(25); /* left by the last row */
  row.state = 'running';
  drawRow(row);
  showVerdict();
  let watching = true;
  const watch = (async () => {
    while (watching) {
      await notePeak(row);
      await wait(40);
    }
  })();
  try {
    if (row.way.quiet) proof.flushes = await mayFlush();
    await row.way.run(row);
    judge(row);
  } catch (e) {
    row.state = e instanceof Skipped ? 'skipped' : 'failed';
    row.note = e.message;
  }
  watching = false;
  await watch;
  drawRow(row);
  showVerdict();
}

/* The digest of the whole answer, including the given half of a resumed one. */
function judge(row) {
  const a = row.answer;
  if (a.state !== 'done') {
    row.state = 'failed';
    row.note = a.error || 'stopped';
    return;
  }
  row.digest = digestOf(a.tokens) || a.invar?.digest;
  if (a.digest && a.invar?.digest && a.digest !== a.invar.digest)
    row.note = 'the server says ' + shortDigest(a.invar.digest);
  if (row.way.quiet) {
    proof.quiet = a;
    row.state = 'equal';
    return;
  }
  const q = proof.quiet;
  row.at = a.tokens.findIndex((t, i) => !q.tokens[i] || !sameBits(t, q.tokens[i]));
  if (row.at < 0 && a.tokens.length < q.tokens.length) row.at = a.tokens.length;
  row.same = row.at < 0 && row.digest === digestOf(q.tokens);
  row.state = row.same !== Boolean(row.way.control) ? 'equal' : 'different';
}

/* ---- drawing ---- */

let soon = 0;
function drawSoon(row) {
  soon ||= requestAnimationFrame(() => {
    soon = 0;
    drawRow(row);
  });
}

/* A cell per token: green if id and bits are those of the quiet run. */
function strip(row) {
  const a = row.answer;
  const q = proof.quiet?.tokens || a?.tokens || [];
  const n = Math.max(q.length, a?.tokens.length || 0, 1);
  const paths = {idle: '', same: '', given: '', other: ''};
  for (let i = 0; i < n; i++) {
    const t = a?.tokens[i];
    const kind = !t                 ? 'idle' :
        row.way.quiet               ? 'same' :
        !q[i] || !sameBits(t, q[i]) ? 'other' :
        i < a.given.length          ? 'given' :
                                      'same';
    paths[kind] += `M${i + 0.06} 0h.88v1h-.88z`;
  }
  return el(
      'svg', {class: 'strip', viewBox: `0 0 ${n} 1`, preserveAspectRatio: 'none', 'aria-hidden': 'true'},
      Object.entries(paths).filter(([, d]) => d).map(([kind, d]) => el('path', {class: kind, d})));
}

const stateWords = {
  waiting: '',
  running: 'running',
  equal: 'equal',
  different: 'different',
  skipped: 'skipped',
  failed: 'failed'
};
function drawRow(row) {
  const {way, answer: a} = row;
  const word = row.state === 'equal'           ? (way.quiet       ? 'reference' :
                                                      way.control ? 'differs, as it must' :
                                                                    'equal') :
      row.state === 'different' && way.control ? 'equal: this page cannot see a difference' :
                                                 stateWords[row.state];
  const notes = [];
  if (row.note) notes.push(row.note);
  if (row.state === 'different' && row.at >= 0) {
    const t = a.tokens[row.at], q = proof.quiet.tokens[row.at];
    notes.push(
        !t || !q ?
            `ends at token ${row.at + 1}` :
            t.id !== q.id ?
            `token ${row.at + 1}: ${visible(t.text ?? '#' + t.id)} for ${visible(q.text ?? '#' + q.id)}` :
            `token ${row.at + 1}: same id, bits ${hex8(floatBits(t.logprob))} for ${hex8(floatBits(q.logprob))}`);
  }
  if (row.peak > 1 && a) notes.push('up to ' + row.peak + ' ran together');
  const done = ['equal', 'different'].includes(row.state);
  const facts = [];
  if (a && done) {
    facts.push(plural(a.tokens.length, 'token'), seconds((a.ended - a.started) / 1e3));
    const cached = a.usage?.prompt_tokens_details?.cached_tokens;
    if (cached) facts.push(cached + ' cached');
    if (cached === 0 && way.name === 'Warm') notes.push('nothing was cached: the prompt is shorter than a page');
  }
  row.item.className = 'run ' + row.state + (way.control ? ' control' : '');
  fill(
      row.item,
      el('div', {class: 'way'}, el('b', {}, way.name),
         el('span', {}, typeof way.what === 'function' ? way.what() : way.what)),
      el('div', {class: 'middle'}, strip(row),
         el('div', {class: 'sub'}, el('span', {}, notes.join(' · ')), el('span', {class: 'mono'}, facts.join(' · ')))),
      el('div', {class: 'result'},
         el('code', {class: 'mono', title: row.digest || ''},
            done                        ? shortDigest(row.digest) :
                row.state === 'running' ? '············' :
                                          ''),
         el('span', {class: 'word'}, word)));
}

function showVerdict(stopped) {
  const counted = proof.rows.filter((r) => !r.way.control && ['equal', 'different', 'failed'].includes(r.state));
  const digests = new Set(counted.filter((r) => r.digest).map((r) => r.digest));
  const bad = proof.rows.filter((r) => r.state === 'different').length;
  const failed = proof.rows.filter((r) => r.state === 'failed').length;
  const skipped = proof.rows.filter((r) => r.state === 'skipped').length;
  const control = proof.rows.find((r) => r.way.control);
  if (!proof.rows.length) return;
  const extra = [];
  if (failed) extra.push(failed + ' failed');
  if (skipped) extra.push(skipped + ' skipped');
  if (control?.state === 'equal') extra.push('the control differs, as it must');
  if (stopped) extra.push('stopped');
  const v = $('verdict');
  v.className = 'verdict ' + (bad ? 'different' : proof.abort ? 'running' : failed || stopped ? '' : 'equal');
  fill(
      v, el('b', {}, plural(digests.size, 'unique answer') + ' in ' + plural(counted.length, 'run')),
      el('code', {class: 'mono'}, [...digests].slice(0, 3).map(shortDigest).join('  ')),
      el('span', {}, extra.join(' · ')));
}

function saveReceipt() { save('receipt.json', receiptText(proof.quiet.invar.receipt)); }
function saveProof() {
  save(
      'proof.json',
      JSON.stringify(
          {
            page: 'invar proof 1',
            when: new Date().toISOString(),
            server: {origin: location.origin, model: server.model, fingerprint: proof.quiet.fingerprint},
            request: proof.body,
            runs:
                proof.rows.map((r) => ({
                                 name: r.way.name,
                                 what: typeof r.way.what === 'function' ? r.way.what() : r.way.what,
                                 state: r.state,
                                 note: r.note || undefined,
                                 digest: r.digest,
                                 ran_together: r.peak || undefined,
                                 ids: r.answer?.tokens.map((t) => t.id),
                                 logprob_bits: r.answer?.tokens
                                                   .map(
                                                       (t) => (
                                                           typeof t.logprob === 'number' ? hex8(floatBits(t.logprob)) :
                                                                                           ''))
                                                   .join(''),
                               })),
          },
          null, 1) +
          '\n');
}
