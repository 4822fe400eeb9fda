/* tokens.js: an answer token by token, shaded by probability; near-ties, top alternatives, forks. */

const nearTie = 0.1; /* nats between the top two */
const view = {
  at: -1,
  answer: null
};

/* A token's text with invisible characters made visible. */
const visible = (text) => (text === '' ? '∅' : text.replace(/\n/g, '⏎').replace(/\t/g, '⇥').replace(/ /g, '␣'));
const probability = (t) => (typeof t.logprob === 'number' ? Math.exp(t.logprob) : NaN);
function isTie(t) { return t.top?.length > 1 && t.top[0].logprob - t.top[1].logprob < nearTie; }
/* 0 for a certain token, 1 for a probability of 0.001 or less. */
const heat = (t) => (typeof t.logprob === 'number' ? Math.min(1, -t.logprob / Math.log(1000)) ** 0.65 : 0);

function showTokens() {
  const a = chat.selected;
  if (view.answer !== a) view.at = a ? Math.max(0, a.tokens.findIndex(isTie)) : -1;
  view.answer = a;
  if (!a || !a.tokens.length) {
    fill(
        $('tokens-head'),
        el('div', {class: 'empty'}, el('h1', {}, 'No answer yet'),
           el('p', {}, 'Ask something in Chat; its tokens appear here, each shaded by how likely it was.')));
    fill($('ribbon'));
    fill($('text'));
    fill($('token'));
    document.querySelector('.keys-hint').hidden = true;
    return;
  }
  document.querySelector('.keys-hint').hidden = false;
  const ps = a.tokens.filter((t) => typeof t.logprob === 'number');
  const sum = ps.reduce((s, t) => s + t.logprob, 0);
  const ties = a.tokens.filter(isTie).length;
  const least = ps.length ? Math.min(...ps.map((t) => t.logprob)) : NaN;
  const fact = (name, value, kind) =>
      el('div', {class: 'fact ' + (kind || '')}, el('b', {class: 'mono'}, value), el('span', {}, name));
  fill(
      $('tokens-head'), fact('tokens', String(a.tokens.length)), fact('near-ties', String(ties), ties ? 'tie' : ''),
      fact('perplexity', ps.length ? Math.exp(-sum / ps.length).toFixed(3) : '–'),
      fact('log-probability', ps.length ? sum.toFixed(3) : '–'),
      fact('least likely', ps.length ? percent(Math.exp(least)) : '–'), fact('seed', String(a.invar?.seed ?? '–')),
      el('div', {class: 'fact grow'}, digestMark(a) || '', el('span', {}, a.invar?.digest ? 'digest' : '')));
  drawRibbon(a);
  fill($('text'), a.tokens.map((t, i) => tokenSpan(a, t, i)));
  selectToken(Math.min(view.at, a.tokens.length - 1), false);
}

/* One bar per token: its surprise. */
function drawRibbon(a) {
  const n = a.tokens.length;
  const svg = el('svg', {viewBox: `0 0 ${n} 1`, preserveAspectRatio: 'none'});
  let all = '', ties = '';
  a.tokens.forEach((t, i) => {
    const h = 0.04 + 0.96 * heat(t);
    const bar = `M${i + 0.1} 1h.8v${- h}h-.8z`;
    if (isTie(t))
      ties += bar;
    else
      all += bar;
  });
  svg.append(
      el('path', {class: 'bars', d: all}), el('path', {class: 'bars tie', d: ties}),
      el('rect', {class: 'cursor', id: 'cursor', x: 0, y: 0, width: 1, height: 1}));
  svg.addEventListener('click', (e) => {
    const box = svg.getBoundingClientRect();
    selectToken(Math.min(n - 1, Math.floor(((e.clientX - box.left) / box.width) * n)), true);
  });
  fill($('ribbon'), svg);
}

function tokenSpan(a, t, i) {
  const text = t.text ?? '⟨' + t.id + '⟩';
  const shown = /^\s*$/.test(text) || /^<.*>$/.test(text) ? visible(text) : text.replace(/\n/g, '⏎\n');
  const special = /^<\|?.+\|?>$/.test(text);
  const span =
      el('span', {
        role: 'option',
        id: 'tok-' + i,
        tabindex: -1,
        'aria-selected': 'false',
        class: [
          'tok', isTie(t) && 'tie', special && 'special', /^\s*$/.test(text) && 'blank', i < a.given.length && 'given',
          t.forced && 'forced'
        ].filter(Boolean)
                   .join(' '),
        'aria-label': `${text}, ${percent(probability(t))}`,
      },
         shown);
  span.style.setProperty('--heat-of', (heat(t) * 100).toFixed(1) + '%');
  span.addEventListener('pointerenter', (e) => e.pointerType === 'mouse' && selectToken(i, false));
  span.addEventListener('click', () => selectToken(i, true));
  const pair = [span];
  if (text.endsWith('\n')) pair.push(el('br', {}));
  return el('span', {class: 'tokwrap'}, pair);
}

function selectToken(i, focus) {
  const a = view.answer;
  if (!a || !a.tokens[i]) return;
  const old = $('tok-' + view.at);
  old?.setAttribute('aria-selected', 'false');
  old?.setAttribute('tabindex', '-1');
  view.at = i;
  const span = $('tok-' + i);
  span.setAttribute('aria-selected', 'true');
  span.setAttribute('tabindex', '0');
  if (focus) span.focus({preventScroll: false});
  $('cursor')?.setAttribute('x', i);
  drawToken(a, i);
}

function drawToken(a, i) {
  const t = a.tokens[i];
  const bytes = t.bytes || (t.text !== undefined ? [...new TextEncoder().encode(t.text)] : null);
  const position = (a.prefixIds || a.promptIds || []).length + i;
  const row = (name, value, title) =>
      value !== null && value !== undefined && [el('dt', {}, name), el('dd', {class: 'mono', title}, value)];
  const raw = typeof t.logprob === 'number';
  const gap = t.top?.length > 1 ? t.top[0].logprob - t.top[1].logprob : NaN;
  fill(
      $('token'),
      el('div', {class: 'side-head'}, el('h2', {}, `Token ${i + 1} of ${a.tokens.length}`),
         isTie(t) && el('span', {class: 'badge tie'}, 'near-tie')),
      el('div', {class: 'big mono'}, visible(t.text ?? '⟨' + t.id + '⟩')),
      el('dl', {class: 'pairs'}, row('id', t.id ?? '–'), row('position', position),
         row('bytes', bytes ? bytes.map((b) => b.toString(16).padStart(2, '0')).join(' ') : '–'),
         row('probability', percent(probability(t))),
         row('raw log-prob', raw ? String(Number(t.logprob.toPrecision(9))) : '–',
             'natural logarithm, of the model’s own distribution'),
         row('its bits', raw ? '0x' + hex8(floatBits(t.logprob)) : '–'),
         typeof t.sampling === 'number' &&
             row('sampling log-prob', Number(t.sampling.toPrecision(9)),
                 'under the distribution that was sampled from: after temperature and filters'),
         !isNaN(gap) && row('first to second', gap.toFixed(4) + ' nats')),
      topList(a, i, t));
  (t.top || [])
      .filter((o) => o.text === undefined && o.id !== undefined)
      .forEach(
          (o) => lookUp(o.id)
                     .then(
                         (text) =>
                             ((o.text = text),
                              view.at === i && view.answer === a &&
                                  fill($('token').querySelector('.top'), topRows(a, i, t))))
                     .catch(() => {}));
}

function topList(a, i, t) {
  if (!t.top?.length)
    return el(
        'p', {class: 'hint'},
        a.kept ? 'History keeps no alternatives: Again, in Chat, requests them.' : 'No alternatives were requested.');
  return el(
      'div', {class: 'top-box'}, el('h3', {}, 'Top tokens'), el('div', {class: 'top'}, topRows(a, i, t)),
      el('p', {class: 'hint'},
         'Choose another one to generate the rest again with the same seed. ' +
             'With the same one the rest must be equal.'));
}
function topRows(a, i, t) {
  const list = t.top.slice();
  if (!list.some((o) => o.id === t.id)) list.push({...t, outside: true});
  const most = Math.max(...list.map((o) => Math.exp(o.logprob)));
  return list.map((o) => {
    const bar = el('i', {});
    bar.style.setProperty('--part', (100 * Math.exp(o.logprob)) / most + '%');
    const chosen = o.id === t.id;
    return el(
        'button', {
          type: 'button',
          class: 'option' + (chosen ? ' chosen' : ''),
          title: `id ${o.id}, log-probability ${o.logprob}\nFork here`,
          onclick: () => forkAt(a, i, o)
        },
        bar, el('span', {class: 'mono'}, visible(o.text ?? '⟨' + o.id + '⟩')),
        el('small', {class: 'mono'}, percent(Math.exp(o.logprob))), el('em', {}, chosen ? 'rerun' : 'fork'));
  });
}

/* Arrow keys move by token, up and down by line. */
function tokenKeys(e) {
  const a = view.answer;
  if (!a || e.ctrlKey || e.metaKey || e.altKey) return;
  const n = a.tokens.length;
  const to = (i) => (e.preventDefault(), selectToken(Math.max(0, Math.min(n - 1, i)), true));
  if (e.key === 'ArrowRight')
    to(view.at + 1);
  else if (e.key === 'ArrowLeft')
    to(view.at - 1);
  else if (e.key === 'Home')
    to(0);
  else if (e.key === 'End')
    to(n - 1);
  else if (e.key === 'n') {
    for (let k = 1; k <= n; k++)
      if (isTie(a.tokens[(view.at + k) % n])) return to((view.at + k) % n);
    toast('No near-ties in this answer');
  } else if (e.key === 'f') {
    e.preventDefault();
    $('token').querySelector('.option:not(.chosen), .option')?.focus();
  } else if (e.key === 'ArrowDown' || e.key === 'ArrowUp') {
    if (document.activeElement?.classList.contains('option')) {
      e.preventDefault();
      const next = e.key === 'ArrowDown' ? document.activeElement.nextElementSibling :
                                           document.activeElement.previousElementSibling;
      return void next?.focus();
    }
    const here = $('tok-' + view.at).getBoundingClientRect();
    const step = e.key === 'ArrowDown' ? 1 : -1;
    let best = -1, cost = Infinity;
    for (let k = view.at + step; k >= 0 && k < n; k += step) {
      const box = $('tok-' + k).getBoundingClientRect();
      const lines = Math.round(((box.top - here.top) * step) / here.height);
      if (lines < 1) continue;
      if (lines > 2 && best >= 0) break;
      const c = Math.abs(box.left - here.left) + lines * 1000;
      if (c < cost) (cost = c), (best = k);
    }
    if (best >= 0) to(best);
  }
}
