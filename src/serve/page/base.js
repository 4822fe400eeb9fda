/* base.js: shared by all panes: elements, numbers as text, SHA-256. */

const $ = (id) => document.getElementById(id);

/* el('p', {class: 'x', onclick: f, title: 't'}, 'text', node, ...) */
function el(tag, props, ...children) {
  const svg = ['svg', 'path', 'line', 'circle', 'rect', 'g', 'text'].includes(tag);
  const e = svg ? document.createElementNS('http://www.w3.org/2000/svg', tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(props || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith('on'))
      e.addEventListener(name.slice(2), value);
    else if (name === 'data')
      Object.assign(e.dataset, value);
    else
      e.setAttribute(name, value === true ? '' : value);
  }
  e.append(...children.flat().filter((c) => c !== null && c !== undefined && c !== false));
  return e;
}
const fill = (e, ...children) => (e.replaceChildren(...children.flat().filter((c) => c || c === 0)), e);

const thousands = (n) => Math.round(n).toLocaleString('en').replaceAll(',', '\u202f');
function seconds(s) {
  if (!isFinite(s)) return '–';
  if (s < 0.001) return (s * 1e6).toFixed(0) + ' µs';
  if (s < 1) return (s * 1e3).toFixed(s < 0.01 ? 1 : 0) + ' ms';
  return s.toFixed(s < 10 ? 2 : 1) + ' s';
}
const rate = (x) =>
    (Number.isInteger(x) && x < 1e4 ? String(x) :
         x >= 100                   ? thousands(x) :
         x >= 10                    ? x.toFixed(0) :
                                      x.toFixed(1));
const percent = (p) => (p === 0         ? '0' :
                            p >= 0.9995 ? '100' :
                            p >= 0.1    ? (p * 100).toFixed(1) :
                            p >= 0.0001 ? (p * 100).toPrecision(2) :
                                          '<0.01') +
    ' %';
const plain = (x) => (typeof x === 'number' ? String(Math.fround(x) === x ? Number(x.toPrecision(6)) : x) : String(x));
const shortDigest = (d) => (d || '').replace('sha256:', '').slice(0, 12);
const plural = (n, one, many) => n + ' ' + (n === 1 ? one : many || one + 's');

let toastTimer = 0;
/* Emptied, not hidden, in between: some readers skip a live region that appears with its text. */
function toast(text) {
  const t = $('toast');
  t.textContent = text;
  clearTimeout(toastTimer);
  toastTimer = setTimeout(() => (t.textContent = ''), 2200);
}
/* For screen readers only. */
const announce = (text) => ($('announce').textContent = text);

/* Reads the browser's storage; '' if empty or denied. */
function stored(kind, name) {
  try {
    return window[kind].getItem(name) || '';
  } catch {
    return '';
  }
}
function store(kind, name, value) {
  try {
    window[kind].setItem(name, value);
  } catch { /* kept for this page only */
  }
}
async function copy(text, what) {
  let done = false;
  try {
    await navigator.clipboard.writeText(text);
    done = true;
  } catch { /* missing if the page came over plain HTTP from another machine */
    const area = el('textarea', {class: 'away', 'aria-label': 'Copied text'}, text);
    const before = document.activeElement;
    document.body.append(area);
    area.select();
    done = document.execCommand('copy');
    area.remove();
    before?.focus();
  }
  toast(what + (done ? ' copied' : ' not copied: the browser does not allow it'));
}
function save(name, text) {
  const url = URL.createObjectURL(new Blob([text], {type: 'application/json'}));
  el('a', {href: url, download: name}).click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

/* ---- bits ---- */

const floatView = new DataView(new ArrayBuffer(4));
function floatBits(x) {
  floatView.setFloat32(0, x);
  return floatView.getUint32(0);
}
function bitsFloat(u) {
  floatView.setUint32(0, u);
  return floatView.getFloat32(0);
}
const hex8 = (u) => u.toString(16).padStart(8, '0');

/* Not crypto.subtle, which is missing if the page came over plain HTTP from another machine. */
const shaK = (() => {
  const k = [];
  for (let n = 2; k.length < 64; n++) {
    let prime = true;
    for (let i = 2; i * i <= n; i++)
      if (n % i === 0) prime = false;
    if (prime) k.push((Math.cbrt(n) % 1) * 2 ** 32 | 0);
  }
  return k;
})();
function sha256(bytes) {
  const h = [2, 3, 5, 7, 11, 13, 17, 19].map((p) => (Math.sqrt(p) % 1) * 2 ** 32 | 0);
  const padded = new Uint8Array(((bytes.length + 72) >> 6) << 6);
  const view = new DataView(padded.buffer);
  padded.set(bytes);
  padded[bytes.length] = 0x80;
  view.setUint32(padded.length - 8, Math.floor(bytes.length / 2 ** 29));
  view.setUint32(padded.length - 4, bytes.length << 3);
  const w = new Int32Array(64);
  const turn = (x, n) => (x >>> n) | (x << (32 - n));
  for (let at = 0; at < padded.length; at += 64) {
    for (let i = 0; i < 16; i++) w[i] = view.getInt32(at + 4 * i);
    for (let i = 16; i < 64; i++) {
      const a = w[i - 15], b = w[i - 2];
      w[i] = w[i - 16] + w[i - 7] + (turn(a, 7) ^ turn(a, 18) ^ (a >>> 3)) + (turn(b, 17) ^ turn(b, 19) ^ (b >>> 10));
    }
    const s = h.slice();
    for (let i = 0; i < 64; i++) {
      const t = (s[7] + (turn(s[4], 6) ^ turn(s[4], 11) ^ turn(s[4], 25)) + ((s[4] & s[5]) ^ (~s[4] & s[6])) + shaK[i] +
                 w[i]) |
          0;
      const u =
          ((turn(s[0], 2) ^ turn(s[0], 13) ^ turn(s[0], 22)) + ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]))) | 0;
      s.pop();
      s[3] = (s[3] + t) | 0;
      s.unshift((t + u) | 0);
    }
    for (let i = 0; i < 8; i++) h[i] = (h[i] + s[i]) | 0;
  }
  return h.map((x) => hex8(x >>> 0)).join('');
}

/* The output digest of NUMERICS.md, 10.8: over ids and log-probability bits, eight bytes a token. */
function digestOf(tokens) {
  if (tokens.some((t) => !(t.id >= 0) || typeof t.logprob !== 'number')) return null;
  const bytes = new Uint8Array(tokens.length * 8);
  const view = new DataView(bytes.buffer);
  tokens.forEach((t, i) => {
    view.setUint32(8 * i, t.id, true);
    view.setFloat32(8 * i + 4, t.logprob, true);
  });
  return 'sha256:' + sha256(bytes);
}
const sameBits = (a, b) => a.id === b.id && floatBits(a.logprob) === floatBits(b.logprob);
