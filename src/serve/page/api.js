/* api.js: requests to this server, which alone gets the keys, and to its listed peers; an answer while it grows. */

const keys = {
  api: stored('sessionStorage', 'invar-key'),
  admin: stored('sessionStorage', 'invar-admin')
};

/* Fields that other servers may lack: omitted once one has been refused by name. */
const extras = {
  return_sampling_logprobs: true,
  return_receipt: true
};

class ApiError extends Error {
  constructor(status, message, param) {
    super(message);
    Object.assign(this, {status, param});
  }
}

/* Seeds have up to 64 bits, JavaScript's numbers 53: they are kept as digits, marked until the JSON is text. */
const markSeed = (seed) => (/^-?\d+$/.test(seed) ? '@@' + seed + '@@' : seed);
const unmarkSeeds = (json) => json.replace(/"seed":( ?)"@@(-?\d+)@@"/g, '"seed":$1$2');
const writeJson = (body) =>
    unmarkSeeds(JSON.stringify(body, (name, value) => (name === 'seed' ? markSeed(value) : value)));
const readJson = (text) => JSON.parse(text.replace(/"seed":\s*(-?\d{16,})/g, '"seed":"$1"'));

async function send(path, body, {signal, admin, method} = {}) {
  const headers = {};
  const own = path.startsWith('/');
  const key = !own ? '' : admin ? keys.admin : keys.api;
  if (key) headers.Authorization = 'Bearer ' + key;
  if (body !== undefined) headers['Content-Type'] = 'application/json';
  const init = {method: method || (body === undefined ? 'GET' : 'POST'), headers, signal, cache: 'no-store'};
  if (!own) init.credentials = 'omit';
  if (body !== undefined) init.body = writeJson(body);
  let response;
  try {
    response = await fetch(path, init);
  } catch (e) {
    if (e.name === 'AbortError') throw e;
    throw new ApiError(
        0, own ? 'The server does not answer' : 'does not answer, or does not allow this page (--allowed-origins)');
  }
  if (response.ok) return response;
  let error = {};
  try {
    error = (await response.json()).error || {};
  } catch { /* not JSON */
  }
  throw new ApiError(response.status, error.message || `${response.status} ${response.statusText}`, error.param);
}
const getJson = async (path) => readJson(await (await send(path)).text());
const postJson = async (path, body, options) => readJson(await (await send(path, body, options)).text());

async function* lines(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  for (;;) {
    const {done, value} = await reader.read();
    if (done) break;
    const parts = (rest + value).split('\n');
    rest = parts.pop();
    yield* parts;
  }
  if (rest) yield rest;
}

/* ---- an answer ---- */

/* path and body as sent, without `extras`. given: tokens of the answer that the prompt already holds (a fork). */
function newAnswer(path, body, given) {
  return {
    path,
    body,
    given: given || [],
    tokens: (given || []).slice(),
    raw: '',
    text: '',
    reasoning: '',
    fresh: {text: '', reasoning: ''}, /* new parts of the two since they were drawn */
    promptIds: null,
    finish: null,
    invar: null,
    fingerprint: null,
    error: null,
    state: 'new',
    started: 0,
    first: 0,
    ended: 0,
    usage: null,
  };
}

const words = new Map(); /* id -> visible text of a token, as far as known */
const decoder = new TextDecoder('utf-8', {fatal: true});
function bytesText(bytes) {
  try {
    return decoder.decode(new Uint8Array(bytes));
  } catch {
    return bytes.map((b) => (b >= 33 && b < 127 ? String.fromCharCode(b) : '\\x' + b.toString(16).padStart(2, '0')))
        .join('');
  }
}
function readToken(entry, id) {
  const named = /^token_id:(\d+)$/.exec(entry.token || '');
  const token = {
    id: entry.id ?? entry.token_id ?? (named ? Number(named[1]) : id),
    logprob: entry.logprob,
    sampling: entry.sampling_logprob,
    bytes: entry.bytes || null,
    text: entry.bytes ? bytesText(entry.bytes) :
        named         ? undefined :
                        entry.token,
  };
  if (token.text === undefined && words.has(token.id)) token.text = words.get(token.id);
  if (token.text !== undefined && token.id !== undefined) words.set(token.id, token.text);
  return token;
}
/* The text of an id without bytes. */
async function lookUp(id) {
  if (words.has(id)) return words.get(id);
  const text = (await postJson('/detokenize', {tokens: [id]})).prompt;
  words.set(id, text);
  return text;
}

function takeLogprobs(answer, choice, ids) {
  const l = choice.logprobs;
  const delta = choice.text ?? '';
  if (l && l.content) {
    l.content.forEach((entry, i) => {
      const token = readToken(entry, ids && ids.length === l.content.length ? ids[i] : undefined);
      token.top = (entry.top_logprobs || []).map((t) => readToken(t));
      answer.tokens.push(token);
    });
  } else if (l && l.tokens) {
    l.tokens.forEach((text, i) => {
      const token = readToken(
          {token: text, logprob: l.token_logprobs[i], sampling_logprob: l.sampling_logprobs?.[i]}, ids && ids[i]);
      if (l.tokens.length === 1 && delta && token.text === undefined) token.text = delta;
      token.top = Object.entries((l.top_logprobs || [])[i] || {})
                      .map(([t, p]) => readToken({token: t, logprob: p}))
                      .sort((a, b) => b.logprob - a.logprob);
      answer.tokens.push(token);
    });
  } else if (ids) {
    ids.forEach((id) => answer.tokens.push({id, text: words.get(id), top: []}));
  }
}

function takeChunk(answer, chunk, index) {
  if (chunk.error) throw new ApiError(chunk.error.code || 500, chunk.error.message, chunk.error.param);
  if (chunk.system_fingerprint) answer.fingerprint = chunk.system_fingerprint;
  if (chunk.prompt_token_ids) answer.promptIds = chunk.prompt_token_ids;
  if (chunk.invar)
    answer.invar = {...answer.invar, ...chunk.invar, ...chunk.invar.choices?.find((c) => c.index === (index || 0))};
  if (chunk.usage) answer.usage = chunk.usage;
  for (const choice of chunk.choices || []) {
    if ((choice.index || 0) !== (index || 0)) continue;
    if (choice.invar) answer.invar = {...answer.invar, ...choice.invar};
    if (choice.prompt_token_ids) answer.promptIds = choice.prompt_token_ids;
    const part = choice.delta || choice.message || {};
    const count = answer.tokens.length;
    takeLogprobs(answer, choice, choice.token_ids);
    for (const [name, more] of
             [['reasoning', part.reasoning_content ?? part.reasoning], ['text', part.content],
              ['text', part.tool_calls && JSON.stringify(part.tool_calls)]]) {
      answer[name] += more ?? '';
      answer.fresh[name] += more ?? '';
    }
    if (choice.text !== undefined) takeRaw(answer, choice.text);
    if (!answer.first && answer.tokens.length > count) answer.first = performance.now();
    if (choice.finish_reason) answer.finish = choice.finish_reason;
  }
}

/* Splits a completion's text into thinking and answer while it comes; a possible start of a tag or an end waits in
 * `held`. At the end splitRaw splits the whole text again. */
function takeRaw(answer, more) {
  answer.cut ??= {held: answer.given.map((t) => t.text ?? '').join(''), to: 'text', ended: false};
  const c = answer.cut;
  const put = (text) => {
    if (!answer[c.to]) text = text.replace(/^\n+/, '');
    answer[c.to] += text;
    answer.fresh[c.to] += text;
  };
  answer.raw += more;
  c.held += more;
  for (let m; !c.ended && (m = /<(\/?)think>/.exec(c.held));) {
    put(c.held.slice(0, m.index));
    c.held = c.held.slice(m.index + m[0].length);
    if (m[1] && c.to === 'text') answer.reasoning = answer.text;
    if (m[1] || c.to === 'text') answer.text = '';
    c.to = m[1] ? 'text' : 'reasoning';
    c.ended = Boolean(m[1]);
  }
  const tail = /<[^<>]{0,30}>?\s{0,9}$/.exec(c.held)?.index ?? c.held.length;
  put(c.held.slice(0, tail));
  c.held = c.held.slice(tail);
}
/* A completion has its thinking and its end in the text: split as in the chat route. */
function splitRaw(answer) {
  const whole = answer.given.map((t) => t.text ?? '').join('') + answer.raw;
  const end = whole.indexOf('</think>');
  const start = whole.indexOf('<think>');
  const tidy = (s) => s.replace(/<\|[a-z_]+\|>\s*$/, '').replace(/^\n+/, '');
  if (start < 0 && end < 0) return void (answer.text = tidy(whole));
  answer.reasoning = tidy(whole.slice(start < 0 ? 0 : start + 7, end < 0 ? undefined : end));
  answer.text = end < 0 ? '' : tidy(whole.slice(end + 8));
}

/* Sends the request and fills in the answer, calling `changed` as it grows. Never throws: answer.state is 'done',
 * 'stopped' or 'failed'. index: of the choice. */
async function ask(answer, {signal, changed, stream = true, index, more} = {}) {
  answer.state = 'running';
  answer.started = performance.now();
  if (answer.path === '/v1/completions') takeRaw(answer, '');
  try {
    for (;;) {
      const optional = Object.fromEntries(Object.keys(extras).filter((k) => extras[k]).map((k) => [k, true]));
      const body = {...answer.body, ...optional, ...more};
      if (answer.path === '/v1/completions')
        body.return_tokens_as_token_ids = true; /* token names may be ambiguous there */
      if (stream) Object.assign(body, {stream: true, stream_options: {include_usage: true}});
      try {
        const response = await send(answer.path, body, {signal});
        if (stream)
          await takeStream(answer, response, index, changed);
        else
          takeChunk(answer, readJson(await response.text()), index);
        break;
      } catch (e) {
        const refused =
            e.status === 400 && Object.keys(extras).find((k) => extras[k] && (e.param === k || e.message.includes(k)));
        if (!refused) throw e;
        extras[refused] = false;
      }
    }
    if (answer.path === '/v1/completions') splitRaw(answer);
    answer.state = 'done';
  } catch (e) {
    if (e.name === 'AbortError')
      answer.state = 'stopped';
    else
      Object.assign(answer, {state: 'failed', error: e.message, status: e.status});
  }
  answer.ended = performance.now();
  answer.digest = digestOf(answer.tokens.slice(answer.given.length));
  changed?.(answer);
  return answer;
}
async function takeStream(answer, response, index, changed) {
  for await (const line of lines(response)) {
    if (!line.startsWith('data:')) continue;
    const data = line.slice(5).trim();
    if (data.startsWith('[DONE]')) break;
    takeChunk(answer, readJson(data), index);
    changed?.(answer);
  }
}

function curlOf(answer) {
  const body = {...answer.body, stream: undefined};
  if (answer.invar?.seed !== undefined) body.seed = answer.invar.seed;
  const quoted = writeJson(body).replaceAll("'", "'\\''");
  const key = keys.api ? ' \\\n  -H "Authorization: Bearer $INVAR_API_KEY"' : '';
  return `curl ${location.origin}${answer.path} \\\n  -H 'Content-Type: application/json'${key} \\\n  -d '${quoted}'`;
}
