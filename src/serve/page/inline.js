/* inline.js: the inside of a Markdown paragraph as DOM nodes: emphasis, code, links, line breaks.
 *
 * Time is linear in the text and depth bounded, whatever the text: openers that wait for their end are at most
 * `openersMost`, and a text longer than `inlineMost` stays as it was written. */

const inlineMost = 8000;
const openersMost = 24;

/* An address that may be followed, or null: absolute, http or https, without a user name that could pose as the host. */
function safeAddress(text) {
  try {
    const url = new URL(text);
    return ['http:', 'https:'].includes(url.protocol) && !url.username && !url.password ? url.href : null;
  } catch {
    return null;
  }
}
function linkOf(address, children) {
  const a = el('a', {href: address, title: address, target: '_blank', rel: 'noopener noreferrer'}, children);
  a.querySelectorAll('a').forEach((inner) => inner.replaceWith(...inner.childNodes));
  return a;
}

const escapable = /[!-/:-@[-`{-~]/;
const inlineSpecial = /[\\`*_~[\]!<\n]|https?:\/\//g;
const delimiterRun = /\*+|_+|~+/y;
const linkTarget =
    /\([ \n]{0,9}(?:<([^<>\n]{0,2000})>|((?:[^\s()<>]|\([^\s()<>]{0,500}\)){0,2000}))(?:[ \n]{1,9}(?:"[^"]{0,500}"|'[^']{0,500}'))?[ \n]{0,9}\)/y;
const angleAddress = /<(https?:\/\/[^\s<>]{1,2000})>/y;
const bareAddress = /https?:\/\/[^\s<>"`*[\]]{1,2000}/y;
function matchAt(pattern, text, at) {
  pattern.lastIndex = at;
  return pattern.exec(text);
}

/* Where runs of so many backticks start; asked in rising order. */
function tickRuns(text) {
  const runs = new Map();
  for (const m of text.matchAll(/`+/g)) {
    if (!runs.has(m[0].length)) runs.set(m[0].length, {starts: [], next: 0});
    runs.get(m[0].length).starts.push(m.index);
  }
  return (length, after) => {
    const r = runs.get(length);
    if (!r) return -1; /* the rest of a run whose first tick is escaped */
    while (r.next < r.starts.length && r.starts[r.next] <= after) r.next++;
    return r.starts[r.next] ?? -1;
  };
}

/* Nodes and strings. Openers stand in `out` as strings; when their end comes, what lies behind them is wrapped. */
function inline(text) {
  if (text.length > inlineMost) return [text];
  const state = {text, out: [], openers: [], brackets: [], ticks: tickRuns(text)};
  let at = 0;
  while (at < text.length) {
    const m = matchAt(inlineSpecial, text, at);
    if (!m) break;
    if (m.index > at) state.out.push(text.slice(at, m.index));
    at = inlineAt(state, m.index);
  }
  if (at < text.length) state.out.push(text.slice(at));
  return state.out.filter((x) => x !== '');
}

/* Takes the special character at `at`; where to go on. */
function inlineAt(s, at) {
  const c = s.text[at], next = s.text[at + 1] || '';
  const literal = (n) => (s.out.push(s.text.slice(at, at + n)), at + n);
  if (c === '\\' && next === '\n') return lineBreak(s, at + 1);
  if (c === '\\') return escapable.test(next) ? (s.out.push(next), at + 2) : literal(1);
  if (c === '\n') return lineBreak(s, at);
  if (c === '`') return codeSpan(s, at);
  if (c === '*' || c === '_' || c === '~') return emphasis(s, at);
  if (c === '[' || (c === '!' && next === '[')) {
    const n = c === '[' ? 1 : 2; /* pictures are not loaded: a link to them */
    s.brackets.push(s.out.length);
    return literal(n);
  }
  if (c === ']') return closeBracket(s, at);
  if (c === '<' || c === 'h') return address(s, at);
  return literal(1);
}

/* As it was written: models mean the ends of their lines. */
function lineBreak(s, at) {
  const last = s.out.length - 1;
  if (typeof s.out[last] === 'string') s.out[last] = s.out[last].trimEnd();
  s.out.push(el('br'));
  at++;
  while (s.text[at] === ' ') at++;
  return at;
}

function codeSpan(s, at) {
  let n = 1;
  while (s.text[at + n] === '`') n++;
  const end = s.ticks(n, at);
  if (end < 0) return s.out.push(s.text.slice(at, at + n)), at + n;
  let code = s.text.slice(at + n, end).replaceAll('\n', ' ');
  if (code.length > 2 && code[0] === ' ' && code.at(-1) === ' ' && code.trim()) code = code.slice(1, -1);
  s.out.push(el('code', {}, code));
  return end + n;
}

const isSpace = (c) => c === undefined || c === '' || /\s/.test(c);
const isSign = (c) => c !== undefined && /[\p{P}\p{S}]/u.test(c);
function emphasis(s, at) {
  const run = matchAt(delimiterRun, s.text, at)[0], c = run[0], end = at + run.length;
  const before = s.text[at - 1], after = s.text[end];
  let opens = !isSpace(after) && (!isSign(after) || isSpace(before) || isSign(before));
  let closes = !isSpace(before) && (!isSign(before) || isSpace(after) || isSign(after));
  if (c === '_') [opens, closes] = [opens && (!closes || isSign(before)), closes && (!opens || isSign(after))];
  let n = run.length;
  if (n > 3 || (c === '~' && n !== 2)) opens = closes = false;
  while (closes && n > 0) {
    const k = s.openers.findLastIndex((o) => o.c === c);
    if (k < 0) break;
    const o = s.openers[k], used = Math.min(n, o.n, 2);
    while (s.brackets.at(-1) > o.at) s.brackets.pop();
    const inner = s.out.splice(o.at + 1);
    s.openers.length = k + 1;
    s.out.push(el(used === 1 ? 'em' : c === '~' ? 'del' : 'strong', {}, inner));
    o.n -= used;
    n -= used;
    s.out[o.at] = c.repeat(o.n);
    if (!o.n) s.openers.pop();
  }
  if (!n) return end;
  if (opens) {
    s.openers.push({c, n, at: s.out.length});
    if (s.openers.length > openersMost) s.openers.shift();
  }
  s.out.push(c.repeat(n));
  return end;
}

/* [text](address): a link where the address may be followed; else all of it stays as it was written. */
function closeBracket(s, at) {
  const open = s.brackets.pop();
  const target = open === undefined ? null : matchAt(linkTarget, s.text, at + 1);
  const href = target && safeAddress(target[1] ?? target[2]);
  if (!href) return s.out.push(']'), at + 1;
  while (s.openers.at(-1)?.at > open) s.openers.pop();
  const children = s.out.splice(open + 1);
  s.out[open] = linkOf(href, children.length ? children : [href]);
  s.brackets.length = 0; /* no link inside a link */
  return at + 1 + target[0].length;
}

function address(s, at) {
  const angle = s.text[at] === '<';
  /* Not behind what makes it a part of another address or word. */
  const part = !angle && /[\w:/@]/.test(s.text[at - 1] ?? '');
  const m = part ? null : matchAt(angle ? angleAddress : bareAddress, s.text, at);
  if (!m) return s.out.push(s.text[at]), at + 1;
  let end = m[0].length;
  const paren = m[0].includes('(');
  while (!angle && (/[.,:;!?'"\\]/.test(m[0][end - 1]) || (m[0][end - 1] === ')' && !paren))) end--;
  const shown = angle ? m[1] : m[0].slice(0, end);
  const href = safeAddress(shown);
  s.out.push(href ? linkOf(href, [shown]) : m[0].slice(0, end));
  return at + end;
}
