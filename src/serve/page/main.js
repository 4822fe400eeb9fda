/* main.js: panes, theme, keys, shortcuts; facts about the server. */

const server = {
  model: '',
  fingerprint: '',
  maxLength: 0,
  together: 16,
  peers: []
};
const panes = ['chat', 'tokens', 'proof', 'live'];
let current = '';

function go(pane) {
  if (!panes.includes(pane)) pane = 'chat';
  current = pane;
  document.body.classList.remove('side-open');
  for (const p of panes) {
    $(p).hidden = p !== pane;
    const tab = $('tab-' + p);
    tab.setAttribute('aria-selected', String(p === pane));
    tab.tabIndex = p === pane ? 0 : -1;
  }
  if (document.activeElement?.role === 'tab') $('tab-' + pane).focus();
  if (location.hash !== '#' + pane) history.replaceState(null, '', '#' + pane);
  if (pane === 'live') drawLive();
  if (pane === 'proof' && !$('proof-prompt').value) setProofDefaults();
}

/* As go; the arrow keys then move within the tokens, not between the tabs. */
function enter(pane) {
  go(pane);
  if (pane === 'tokens' && view.answer?.tokens.length) selectToken(Math.max(0, view.at), true);
}

function setProofDefaults() {
  const a = lastAnswer();
  if (a) return proveAnswer(a);
  $('proof-prompt').value = longExample;
  $('proof-seed').value = '7';
  $('proof-max').value = '160';
}

/* ---- theme ---- */

const themes = ['auto', 'light', 'dark'];
function setTheme(theme) {
  if (!themes.includes(theme)) theme = 'auto';
  document.documentElement.style.colorScheme = theme === 'auto' ? 'light dark' : theme;
  document.documentElement.dataset.theme = theme;
  $('theme').setAttribute('aria-label', 'Theme: ' + theme);
  $('theme').title = 'Theme: ' + theme;
  store('localStorage', 'invar-theme', theme);
}

/* ---- the server ---- */

function showFingerprint(fingerprint) {
  server.fingerprint = fingerprint;
  const b = $('fingerprint');
  b.hidden = false;
  b.textContent = fingerprint;
  b.title =
      'Fingerprint of everything that may change a bit: numerics, arithmetic, type, weights, tokenizer, template. Click to copy';
}
async function learnServer() {
  try {
    const list = await getJson('/v1/models');
    const m = list.data?.[0] || {};
    server.model = m.id || '';
    server.maxLength = m.max_model_len || 0;
    $('model').textContent = server.model;
    document.title = server.model ? server.model + ' · invar' : 'invar';
    if (m.fingerprint || m.system_fingerprint) showFingerprint(m.fingerprint || m.system_fingerprint);
  } catch (e) {
    if (e.status === 401) $('keys').showModal();
  }
  try {
    const info = await getJson('/server_info');
    const fingerprint = info.fingerprint || info.system_fingerprint;
    if (fingerprint) showFingerprint(fingerprint);
    server.peers = info.proof_urls || [];
    server.maxLength ||= info.max_model_len || info.max_total_num_tokens || 0;
    if (info.max_running_requests > 1) server.together = info.max_running_requests;
    if (!$('proof-decoys').value) $('proof-decoys').value = Math.min(24, server.together - 1);
    if (info.version) $('model').title = 'invar ' + info.version;
  } catch { /* known after the first answer */
  }
}

function showStatus(s) {
  const e = $('status');
  if (!s) {
    e.className = 'status bad';
    return void (e.textContent = live.status === 401 ? 'key wanted' : 'no answer');
  }
  const state = s.failed === 1 ? 'engine lost' : s.paused === 1 ? 'paused' : '';
  e.className = 'status ' + (s.failed === 1 ? 'bad' : s.running > 0 ? 'busy' : 'idle');
  fill(
      e, state || (s.running > 0 ? s.running + ' running' : 'idle'),
      !state && s.waiting > 0 && el('span', {class: 'wide-only'}, `, ${s.waiting} waiting`));
}

/* ---- events ---- */

function openSide(open) {
  document.body.classList.toggle('side-open', open);
  if (open) $('field-seed').focus();
}

function shortcuts(e) {
  if (document.querySelector('dialog[open]')) return; /* Esc closes it, without further effect */
  const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement?.tagName);
  if (e.altKey && /^Digit[1-4]$/.test(e.code)) {
    e.preventDefault();
    enter(panes[Number(e.code.slice(5)) - 1]);
  } else if (e.key === 'Escape') {
    if (document.body.classList.contains('side-open'))
      openSide(false);
    else if (chat.running)
      stopAnswer();
    else if (proof.abort)
      proof.abort.abort();
  } else if (!typing && e.key === '/') {
    e.preventDefault();
    go('chat');
    $('prompt').focus();
  } else if (!typing && e.key === '?') {
    $('keys').showModal();
  } else if (!typing && current === 'tokens') {
    tokenKeys(e);
  }
}

/* The keys of WAI-ARIA's tabs: arrows, Home and End; the focus follows. */
function tabKeys(e) {
  if (e.ctrlKey || e.metaKey || e.altKey || e.shiftKey) return;
  const at = panes.indexOf(current), n = panes.length;
  const to = {ArrowRight: (at + 1) % n, ArrowLeft: (at + n - 1) % n, Home: 0, End: n - 1}[e.key];
  if (to === undefined) return;
  e.preventDefault();
  e.stopPropagation();
  go(panes[to]);
  $('tab-' + current).focus();
}

function grow(area) {
  area.style.height = 'auto';
  area.style.height = Math.min(area.scrollHeight, 220) + 'px';
}

function start() {
  setTheme(stored('localStorage', 'invar-theme'));
  makeFields();
  showChat();
  showEffect();
  showTokens();
  go(location.hash.slice(1));

  /* Some browsers do not focus a clicked button: the arrow keys need the focus on the tab. */
  document.querySelectorAll('[role=tab]')
      .forEach((t) => t.addEventListener('click', () => (t.focus(), enter(t.dataset.pane))));
  document.querySelector('.tabs').addEventListener('keydown', tabKeys);
  addEventListener('hashchange', () => go(location.hash.slice(1)));
  addEventListener('keydown', shortcuts);
  document.addEventListener('visibilitychange', () => !document.hidden && poll());

  $('composer').addEventListener('submit', (e) => {
    e.preventDefault();
    if (chat.running) return stopAnswer();
    if (!askAbout($('prompt').value)) return;
    $('prompt').value = '';
    showFault($('prompt'), '');
    grow($('prompt'));
  });
  $('prompt').addEventListener('input', () => grow($('prompt')));
  $('prompt').addEventListener('keydown', (e) => {
    if (e.key !== 'Enter' || e.shiftKey || e.isComposing) return;
    e.preventDefault();
    if (!chat.running) $('composer').requestSubmit();
  });
  $('effect').addEventListener('click', () => openSide(!document.body.classList.contains('side-open')));
  $('sampling-close').addEventListener('click', () => openSide(false));
  $('fingerprint').addEventListener('click', () => copy(server.fingerprint, 'Fingerprint'));
  $('theme').addEventListener(
      'click', () => setTheme(themes[(themes.indexOf(document.documentElement.dataset.theme) + 1) % 3]));
  $('settings').addEventListener('click', () => $('keys').showModal());
  $('api-key').value = keys.api;
  $('admin-key').value = keys.admin;
  startHistory();
  reopenChat();
  watchFiles();
  ['proof-seed', 'proof-temperature', 'proof-max', 'proof-decoys'].forEach((id) => watchField($(id)));
  ['api-key', 'admin-key'].forEach((id) => watchField($(id)));
  $('keys').querySelector('form').addEventListener(
      'submit', (e) => checkFields([$('api-key'), $('admin-key')]) || e.preventDefault());
  $('keys').addEventListener('close', () => {
    /* Closed by Esc: an invalid key is cleared. */
    for (const [name, input] of [['api', $('api-key')], ['admin', $('admin-key')]]) {
      if (faultOf(input)) input.value = keys[name];
      checkField(input);
      keys[name] = input.value.trim();
    }
    store('sessionStorage', 'invar-key', keys.api);
    store('sessionStorage', 'invar-admin', keys.admin);
    learnServer();
    poll();
  });
  $('proof-form').addEventListener('submit', (e) => {
    e.preventDefault();
    runProof();
  });
  $('proof-max').value = '96';
  $('save-receipt').addEventListener('click', saveReceipt);
  $('save-proof').addEventListener('click', saveProof);
  if (matchMedia('(min-width: 60rem)').matches && current === 'chat') $('prompt').focus();
  learnServer();
  poll();
}
start();
