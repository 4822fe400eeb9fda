/* history.js: conversations kept in this browser: stored, listed, opened, renamed, deleted. */

const chatPrefix = 'invar-chat-';
const historyMost = 4 * 2 ** 20; /* characters; browsers give an origin about 5 Mi */
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

/* Newest first; one that cannot be read is listed too, so that it can be deleted. */
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

/* Stores the conversation as it is now. */
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
    showHistoryFault('');
  } catch (e) {
    showHistoryFault(storageFault(e));
  }
}

/* ---- which conversation is on the screen -------------------------------------------------------------------- */

function showTitle() {
  $('chat-title').textContent = chat.title;
  $('chat-export').disabled = !chat.turns.length;
}
/* Ends what runs and shows these turns. */
async function showTurns({id = null, title = '', turns = []} = {}) {
  if (chat.running) {
    stopAnswer();
    await chat.running.over;
  }
  const last = turns.at(-1);
  Object.assign(chat, {id, title, turns, selected: last?.versions?.[last.at] ?? null});
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

/* ---- the list --------------------------------------------------------------------------------------------- */

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
/* A button that acts when it is pressed a second time. */
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
/* Why not; '' if it was done. */
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
/* The one on the screen goes with its record: first, for an answer that is stopped is kept once more. */
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
