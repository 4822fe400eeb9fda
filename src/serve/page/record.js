/* record.js: a conversation as text: in the form that this browser keeps, and as the file that it exports. */

const recordVersion = 1;

/* Tokens without their alternatives, which are most of an answer's bytes. Bytes only where the text does not give them. */
function packTokens(tokens) {
  const odd = {};
  tokens.forEach((t, i) => {
    if (t.bytes && t.text !== undefined && bytesOf(t.text).join() !== t.bytes.join()) odd[i] = t.bytes;
  });
  return {
    ids: tokens.map((t) => t.id ?? null),
    bits: tokens.map((t) => (typeof t.logprob === 'number' ? hex8(floatBits(t.logprob)) : '--------')).join(''),
    texts: tokens.map((t) => t.text ?? null),
    odd,
    forced: tokens.flatMap((t, i) => (t.forced ? [i] : []))
  };
}
const bytesOf = (text) => [...new TextEncoder().encode(text)];
function unpackTokens(p) {
  return p.ids.map((id, i) => {
    const bits = p.bits.slice(8 * i, 8 * i + 8);
    return {
      id: id ?? undefined,
      logprob: bits[0] === '-' ? undefined : bitsFloat(parseInt(bits, 16)),
      text: p.texts[i] ?? undefined,
      bytes: p.odd[i] || null,
      top: [],
      forced: p.forced.includes(i)
    };
  });
}

const keptAsIs = [
  'path', 'body', 'raw', 'text', 'reasoning', 'promptIds', 'prefixIds', 'finish', 'invar', 'fingerprint', 'usage',
  'state', 'error', 'label', 'digest'
];
function packAnswer(a, versions) {
  const out = {
    given: packTokens(a.given),
    tokens: packTokens(a.tokens.slice(a.given.length)),
    first: a.first ? a.first - a.started : 0,
    ended: a.ended - a.started,
    like: versions.indexOf(a.like),
    forked: a.forkedFrom ? [versions.indexOf(a.forkedFrom.answer), a.forkedFrom.at] : null
  };
  for (const name of keptAsIs) out[name] = a[name];
  return out;
}
function unpackAnswer(p, versions) {
  const a = newAnswer(p.path, p.body, unpackTokens(p.given));
  for (const name of keptAsIs) a[name] = p[name];
  a.tokens.push(...unpackTokens(p.tokens));
  a.first = p.first;
  a.ended = p.ended;
  a.like = versions[p.like];
  if (p.forked) a.forkedFrom = {answer: versions[p.forked[0]], at: p.forked[1]};
  a.kept = true; /* its tokens have no alternatives */
  return a;
}

/* Its first line says what a list shows, so that nothing else has to be read for it. */
function packChat({title, turns}) {
  const head = {version: recordVersion, title, when: new Date().toISOString(), turns: turns.length};
  return JSON.stringify(head) + '\n' +
      JSON.stringify(turns.map(
          (t) => (t.role === 'user' ?
                      t :
                      {role: t.role, at: t.at, versions: t.versions.map((a) => packAnswer(a, t.versions))})));
}
function unpackHead(text) {
  const head = JSON.parse(text.slice(0, text.indexOf('\n')));
  if (head.version !== recordVersion) throw new Error('wanted version ' + recordVersion + ', found ' + head.version);
  return head;
}
function unpackChat(text) {
  const {title} = unpackHead(text);
  const turns = JSON.parse(text.slice(text.indexOf('\n') + 1)).map((t) => {
    if (t.role === 'user') return t;
    const versions = [];
    for (const p of t.versions) versions.push(unpackAnswer(p, versions));
    return {role: t.role, at: t.at, versions};
  });
  return {title, turns};
}

/* ---- the exported file ------------------------------------------------------------------------------------ */

const withSeed = (o) => ('seed' in o ? {...o, seed: markSeed(o.seed)} : o);
/* All that it takes to ask again and to compare: the request with the seed that it had, and what the server returned. */
function exportAnswer(a) {
  const own = a.tokens.slice(a.given.length);
  return {
    label: a.label || undefined,
    path: a.path,
    request: withSeed({...a.body, seed: a.invar?.seed ?? a.body.seed}),
    state: a.state,
    error: a.error || undefined,
    text: a.text,
    reasoning: a.reasoning || undefined,
    finish_reason: a.finish,
    seed: markSeed(a.invar?.seed),
    digest: a.invar?.digest,
    digest_by_page: a.digest ?? undefined,
    fingerprint: a.fingerprint ?? undefined,
    parameters: a.invar?.parameters && withSeed(a.invar.parameters),
    usage: a.usage ?? undefined,
    receipt: a.invar?.receipt,
    prompt_token_ids: a.promptIds ?? undefined,
    token_ids: own.map((t) => t.id ?? null),
    logprob_bits: own.map((t) => (typeof t.logprob === 'number' ? hex8(floatBits(t.logprob)) : '--------')).join('')
  };
}
/* A receipt stays as it came: its seed is a string. */
function exportText({title, turns}) {
  const file = {
    page: 'invar chat 1',
    when: new Date().toISOString(),
    title,
    server: {origin: location.origin, model: server.model, fingerprint: server.fingerprint},
    turns: turns.map(
        (t) => (t.role === 'user' ? t : {role: t.role, shown: t.at, answers: t.versions.map(exportAnswer)}))
  };
  return unmarkSeeds(JSON.stringify(file, null, 1)) + '\n';
}
