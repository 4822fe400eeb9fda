/* history.js: conversations kept in this browser: stored, listed, opened, renamed, deleted. */

/* ---- a conversation as text: in the browser's storage, and as an exported file ---- */

const recordVersion = 1;

/* Tokens without their alternatives, which are most of an answer's size. Bytes only if the text does not determine
 * them. */
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

/* The first line has the list entry, so that the list needs nothing else. */
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

/* ---- the exported file ---- */

const withSeed = (o) => ('seed' in o ? {...o, seed: markSeed(o.seed)} : o);
/* Everything needed to repeat and compare: the request with its seed, and the server's answer. */
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
/* A receipt is unchanged: its seed is a string. */
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

/* ---- storage ---- */

const chatPrefix = 'invar-chat-';
const historyMost = 4 * 2 ** 20; /* characters; browsers allow about 5 Mi per origin */
const titleMost = 60;

const sizeText = (n) => (n < 2 ** 20 ? Math.ceil(n / 1024) + ' KiB' : (n / 2 ** 20).toFixed(2) + ' MiB');

/* Why the browser did not store or read. */
function storageFault(e) {
  if (e.name === 'QuotaExceededError')
    return 'The browser’s storage is full: this conversation is not kept. Delete others in History.';
  if (e.name === 'SecurityError')
    return 'The browser does not let this page store anything: this conversation ends with this tab. Export saves it.';
  return 'This conversation is not kept: ' + e.message;
}
function showHistoryFault(text) {
  if ($('history-fault').textContent !== text) $('history-fault').textContent = text;
}

/* Newest first; unreadable entries are listed too, so that they can be deleted. */
function storedChats() {
  const list = [];
  for (let i = 0; i < localStorage.length; i++) {
    const key = localStorage.key(i);
    if (!key.startsWith(chatPrefix)) continue;
    const text = localStorage.getItem(key) || '';
    const entry = {id: key.slice(chatPrefix.length), size: key.length + text.length};
    try {
      const head = unpackHead(text);
      Object.assign(entry, {title: String(head.title), when: String(head.when), turns: Number(head.turns)});
    } catch {
      Object.assign(entry, {title: 'cannot be read', when: '', broken: true});
    }
    list.push(entry);
  }
  return list.sort((a, b) => (a.when < b.when ? 1 : a.when > b.when ? -1 : 0));
}
const sizeOf = (list) => list.reduce((n, c) => n + c.size, 0);

function titleOf(text) {
  const line = text.replace(/\s+/g, ' ').trim();
  return line.length > titleMost ? line.slice(0, titleMost - 1).trimEnd() + '…' : line;
}

/* Stores the current conversation. */
function keepChat() {
  if (!chat.turns.length) return;
  chat.title ||= titleOf(chat.turns[0].content);
  chat.id ??= Date.now().toString(36) + '-' + Math.floor(Math.random() * 2 ** 32).toString(36);
  showTitle();
  try {
    const text = packChat(chat), key = chatPrefix + chat.id;
    const others = sizeOf(storedChats().filter((c) => c.id !== chat.id));
    if (others + key.length + text.length > historyMost)
      return showHistoryFault(
          `History is full (${sizeText(others)} of ${sizeText(historyMost)} with other conversations): this one, of ` +
          `${sizeText(text.length)}, is not kept. Delete others in History; Export saves this one.`);
    localStorage.setItem(key, text);
    store('sessionStorage', 'invar-chat', chat.id);
    showHistoryFault('');
  } catch (e) {
    showHistoryFault(storageFault(e));
  }
}

/* ---- the current conversation ---- */

function showTitle() {
  $('chat-title').textContent = chat.title;
  $('chat-export').disabled = !chat.turns.length;
}
/* Stops the running answer and shows these turns. */
async function showTurns({id = null, title = '', turns = []} = {}) {
  if (chat.running) {
    stopAnswer();
    await chat.running.over;
  }
  const last = turns.at(-1);
  Object.assign(chat, {id, title, turns, selected: last?.versions?.[last.at] ?? null});
  store('sessionStorage', 'invar-chat', id ?? '');
  showHistoryFault('');
  showTitle();
  showChat();
  showEffect();
  showTokens();
  $('messages').scrollTop = 0;
}
async function newChat() {
  await showTurns();
  $('prompt').focus();
}
async function openChat(id) {
  try {
    const found = unpackChat(localStorage.getItem(chatPrefix + id) || '');
    $('history').close();
    await showTurns({id, ...found});
  } catch (e) {
    showListFault('It cannot be read: ' + e.message);
  }
}

/* After a reload, the conversation that this tab had on the screen. */
async function reopenChat() {
  const id = stored('sessionStorage', 'invar-chat');
  if (!id) return;
  try {
    const text = localStorage.getItem(chatPrefix + id);
    if (text) await showTurns({id, ...unpackChat(text)});
  } catch (e) {
    showHistoryFault('The last conversation cannot be read: ' + e.message);
  }
}

/* ---- the list ---- */

const showListFault = (text) => ($('history-list-fault').textContent = text);

function openHistory() {
  drawHistory();
  $('history').showModal();
}
function drawHistory() {
  showListFault('');
  let list = [];
  try {
    list = storedChats();
  } catch (e) {
    showListFault('The browser does not let this page store anything: conversations end with their tab.');
  }
  $('history-used').textContent = list.length ?
      `${plural(list.length, 'conversation')} in this browser, ${sizeText(sizeOf(list))} of ${sizeText(historyMost)}.` :
      'No conversation is kept in this browser.';
  $('history-clear').hidden = !list.length;
  fill($('history-list'), list.map(historyItem));
}
function historyItem(c) {
  const when = c.when ? new Date(c.when).toLocaleString() : '';
  const item = el('li', {class: c.id === chat.id ? 'current' : undefined});
  const act = (text, label, f) => el('button', {type: 'button', 'aria-label': `${label}: ${c.title}`, onclick: f}, text);
  fill(
      item,
      el('button', {type: 'button', class: 'open', disabled: c.broken, onclick: () => openChat(c.id)},
         el('b', {}, c.title),
         el('small', {}, [c.id === chat.id && 'on the screen', when, c.turns && plural(c.turns, 'message'), sizeText(c.size)]
                             .filter(Boolean)
                             .join(' · '))),
      !c.broken && act('Rename', 'Rename', () => renameItem(item, c)),
      twice(act('Delete', 'Delete', () => {}), 'Delete for good?', () => deleteChats([c.id])));
  return item;
}
/* A button that acts on the second press. */
function twice(button, question, f) {
  const text = button.textContent, label = button.getAttribute('aria-label');
  let timer = 0;
  const calm = () => {
    clearTimeout(timer);
    timer = 0;
    button.textContent = text;
    if (label) button.setAttribute('aria-label', label);
  };
  button.addEventListener('click', () => {
    if (timer) return calm(), f();
    button.textContent = question;
    if (label) button.setAttribute('aria-label', question + ' ' + label);
    timer = setTimeout(calm, 5000);
  });
  button.addEventListener('blur', calm);
  return button;
}
function renameItem(item, c) {
  const input = el('input', {'aria-label': 'Title', maxlength: 200});
  input.value = c.title;
  const put = () => {
    const title = input.value.replace(/\s+/g, ' ').trim();
    const fault = title && renameChat(c.id, title);
    drawHistory();
    if (fault) showListFault(fault);
  };
  input.addEventListener('keydown', (e) => {
    if (e.key === 'Enter') e.preventDefault(), put();
    if (e.key === 'Escape') e.preventDefault(), e.stopPropagation(), drawHistory();
  });
  fill(item, input, el('button', {type: 'button', onclick: put}, 'Rename'));
  input.select();
}
/* The reason of the failure; '' on success. */
function renameChat(id, title) {
  try {
    const key = chatPrefix + id, text = localStorage.getItem(key);
    localStorage.setItem(key, JSON.stringify({...unpackHead(text), title}) + text.slice(text.indexOf('\n')));
    if (id === chat.id) chat.title = title;
    showTitle();
  } catch (e) {
    return 'Not renamed: ' + e.message;
  }
  return '';
}
/* The current conversation is cleared before its record, because a stopped answer is stored once more. */
async function deleteChats(ids) {
  if (ids.includes(chat.id)) await showTurns();
  let fault = '';
  try {
    ids.forEach((id) => localStorage.removeItem(chatPrefix + id));
  } catch (e) {
    fault = 'Not deleted: ' + e.message;
  }
  drawHistory();
  if (fault) showListFault(fault);
  $('history-close').focus();
}

function startHistory() {
  $('chat-new').addEventListener('click', newChat);
  $('chat-history').addEventListener('click', openHistory);
  $('chat-export').addEventListener('click', () => save('chat.json', exportText(chat)));
  $('history-close').addEventListener('click', () => $('history').close());
  twice($('history-clear'), 'Delete all for good?', () => deleteChats(storedChats().map((c) => c.id)));
  addEventListener('storage', () => $('history').open && drawHistory());
  showTitle();
}
