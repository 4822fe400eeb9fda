/* markdown.js: draws Markdown as DOM nodes while it comes; a model's text is never parsed as HTML.
 *
 * Each complete line is read once. The unfinished last line is read provisionally and replaced when more comes. Only
 * the open paragraph is redrawn, with at most `inlineMost` characters as Markdown, so that the work is linear in the
 * text however it is cut. Depth and the number of blocks are bounded; beyond them text stays raw. */

/* ---- inside a paragraph ---- */

/* Emphasis, code, links and line breaks as DOM nodes. Time is linear in the text and depth is bounded: at most
 * `openersMost` openers wait for their end, and a text longer than `inlineMost` stays raw. */

const inlineMost = 8000;
const openersMost = 24;

/* An address that may become a link, or null: absolute, http or https, without a user name that could pose as the
 * host. */
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

/* The starts of runs of so many backticks; queried in ascending order. */
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

/* Nodes and strings. Openers are strings in `out`; at their end, the nodes behind them are wrapped. */
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

/* Handles the special character at `at`; returns the next position. */
function inlineAt(s, at) {
  const c = s.text[at], next = s.text[at + 1] || '';
  const literal = (n) => (s.out.push(s.text.slice(at, at + n)), at + n);
  if (c === '\\' && next === '\n') return lineBreak(s, at + 1);
  if (c === '\\') return escapable.test(next) ? (s.out.push(next), at + 2) : literal(1);
  if (c === '\n') return lineBreak(s, at);
  if (c === '`') return codeSpan(s, at);
  if (c === '*' || c === '_' || c === '~') return emphasis(s, at);
  if (c === '[' || (c === '!' && next === '[')) {
    const n = c === '[' ? 1 : 2; /* images are not loaded, but linked */
    s.brackets.push(s.out.length);
    return literal(n);
  }
  if (c === ']') return closeBracket(s, at);
  if (c === '<' || c === 'h') return address(s, at);
  return literal(1);
}

/* Line breaks are kept: models intend them. */
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

/* [text](address): a link if the address is allowed; otherwise raw text. */
function closeBracket(s, at) {
  const open = s.brackets.pop();
  const target = open === undefined ? null : matchAt(linkTarget, s.text, at + 1);
  const href = target && safeAddress(target[1] ?? target[2]);
  if (!href) return s.out.push(']'), at + 1;
  while (s.openers.at(-1)?.at > open) s.openers.pop();
  const children = s.out.splice(open + 1);
  s.out[open] = linkOf(href, children.length ? children : [href]);
  s.brackets.length = 0; /* no nested links */
  return at + 1 + target[0].length;
}

function address(s, at) {
  const angle = s.text[at] === '<';
  /* Not after characters that make it part of another address or word. */
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

/* ---- blocks ---- */

const depthMost = 12;
const blocksMost = 20000;
const columnsMost = 64;
const lineMost = 4096; /* replacement of an unfinished line that was drawn provisionally */
const chunkMost = 4096;

const fenceStart = /`{3,}|~{3,}/y;
const headingStart = /#{1,6}(?= |$)/y;
const itemStart = /([-+*]|\d{1,9}[.)])( +|$)/y;
const rule = /^([-*_])(?: *\1){2,} *$/;
/* Whether the start of a line does not determine its kind yet. */
const undecided = /^[ >]{0,40}(?:[-+*=_#|:~`]{1,9}|\d{1,9}[.)]?)? ?$/;

class Markdown {
  constructor(root) {
    this.root = root;
    this.restart();
  }
  restart() {
    this.root.replaceChildren();
    this.stack = []; /* open containers: {kind: 'quote' or 'item', el, indent, list, type} */
    this.leaf = null; /* the open block: {kind: 'para', 'fence' or 'table', el, depth, ...} */
    this.rest = '';   /* the unfinished line */
    this.within = false; /* its start has been drawn */
    this.trial = null;
    this.blocks = 0;
  }

  push(text) {
    this.takeBack();
    const all = this.rest + text;
    let from = 0;
    for (let end; (end = all.indexOf('\n', from)) >= 0; from = end + 1) {
      this.take(all.slice(from, end));
      this.within = false;
    }
    this.rest = all.slice(from);
    if (this.within || this.rest.length > lineMost) {
      this.take(this.rest);
      this.within = true;
      this.rest = '';
    } else if (this.rest && !undecided.test(this.rest)) {
      this.trial = {stack: this.stack.slice(), leaf: this.leaf, was: {...this.leaf}, blocks: this.blocks, undo: []};
      this.take(this.rest);
    }
    this.draw();
  }
  /* End of the text. */
  end() {
    this.takeBack();
    if (this.rest) this.take(this.rest);
    this.rest = '';
    this.draw();
  }
  takeBack() {
    const t = this.trial;
    if (!t) return;
    this.trial = null;
    t.undo.reverse().forEach((f) => f());
    this.stack = t.stack;
    this.blocks = t.blocks;
    this.leaf = t.leaf;
    if (t.leaf) Object.assign(t.leaf, t.was, {stale: true});
  }
  take(line) {
    if (line.endsWith('\r')) line = line.slice(0, -1);
    if (this.within)
      this.goOn(line);
    else
      this.line(line.replace(/^[ \t]+/, (s) => s.replaceAll('\t', '    ')));
  }
  /* More of a line whose start has been drawn. */
  goOn(text) {
    if (!text) return;
    if (this.leaf?.kind === 'fence') return this.addCode(text);
    if (this.leaf?.kind !== 'para') this.openPara('');
    this.addText(text);
  }

  /* ---- the tree ---- */

  add(parent, node) {
    parent.append(node);
    this.blocks++;
    this.trial?.undo.push(() => node.remove());
    return node;
  }
  place() { return this.stack.at(-1)?.el ?? this.root; }
  closeTo(depth) {
    this.closeLeaf();
    this.stack.length = Math.min(depth, this.stack.length);
  }
  closeLeaf() {
    this.draw();
    this.leaf = null;
  }
  /* Redraws the open paragraph, if it has changed. */
  draw() {
    const l = this.leaf;
    if (l?.kind !== 'para' || l.long || !l.stale) return;
    l.el.replaceChildren(...inline(l.text));
    l.stale = false;
  }

  /* ---- a line ---- */

  line(line) {
    if (this.blocks > blocksMost) return this.overflow(line);
    let [depth, at] = this.matchContainers(line);
    const l = this.leaf;
    if (l?.kind === 'fence') {
      if (depth === l.depth) return this.fenceLine(line.slice(at));
      this.closeTo(depth);
    }
    for (let fresh = false;; fresh = true) {
      const start = at + indentOf(line, at);
      if (isBlank(line, start)) return fresh ? undefined : this.closeTo(depth);
      const open = this.openContainer(line, at, start, depth);
      if (!open) return this.openLeaf(line.slice(start), depth, start - at);
      [depth, at] = open;
    }
  }
  /* How many open containers continue in this line, and the start of their content. */
  matchContainers(line) {
    let at = 0, depth = 0;
    for (; depth < this.stack.length; depth++) {
      const c = this.stack[depth], n = indentOf(line, at);
      if (c.kind === 'quote') {
        if (n > 3 || line[at + n] !== '>') break;
        at += n + 1;
        if (line[at] === ' ') at++;
      } else if (at + n < line.length) {
        if (n >= c.indent)
          at += c.indent;
        else if (n >= 2 && this.leaf?.kind !== 'fence' && matchAt(itemStart, line, at + n))
          at += n; /* a nested list with too little indentation, as models write it */
        else
          break;
      }
    }
    return [depth, at];
  }
  /* Opens the container that starts at `start`, after the spaces from `from` on: its depth and the start of its
   * content. */
  openContainer(line, from, start, depth) {
    if (depth >= depthMost) return null;
    if (line[start] === '>') {
      this.closeTo(depth);
      this.stack.push({kind: 'quote', el: this.add(this.place(), el('blockquote'))});
      return [depth + 1, line[start + 1] === ' ' ? start + 2 : start + 1];
    }
    const m = matchAt(itemStart, line, start);
    if (!m || isRule(line, start)) return null;
    const type = m[1].at(-1), number = m[1].length > 1 ? parseInt(m[1]) : 0, empty = start + m[0].length >= line.length;
    /* A number at the start of a line does not end a paragraph. */
    const inside = this.leaf?.kind === 'para' && depth === this.stack.length;
    if (inside && (empty || (m[1].length > 1 && number !== 1))) return null;
    const last = this.stack[depth];
    this.closeTo(depth);
    const list = last?.kind === 'item' && last.type === type ?
        last.list :
        this.add(this.place(), m[1].length > 1 ? el('ol', {start: number === 1 ? undefined : number}) : el('ul'));
    const gap = m[2].length > 4 || empty ? 1 : m[2].length;
    const indent = start - from + m[1].length + gap;
    this.stack.push({kind: 'item', el: this.add(list, el('li')), list, type, indent});
    return [depth + 1, start + m[1].length + gap];
  }
  openLeaf(rest, depth, indent) {
    const heading = matchAt(headingStart, rest, 0);
    if (heading) {
      this.closeTo(depth);
      const h = this.add(this.place(), el('h' + Math.min(6, heading[0].length + 2)));
      h.append(...inline(headingText(rest.slice(heading[0].length))));
      return;
    }
    if (this.tableLine(rest, depth)) return;
    if (isRule(rest, 0)) return this.closeTo(depth), void this.add(this.place(), el('hr'));
    const fence = matchAt(fenceStart, rest, 0)?.[0];
    const info = fence ? rest.slice(fence.length).trim() : '';
    if (fence && !(fence[0] === '`' && info.includes('`'))) return this.openFence(fence, info, depth, indent);
    if (this.leaf?.kind === 'para') return this.addText('\n' + rest);
    this.closeTo(depth);
    this.openPara(taskMark(rest, this.place()));
  }

  /* ---- paragraphs ---- */

  openPara(text) {
    this.leaf = {kind: 'para', el: this.add(this.place(), el('p')), text, long: false, stale: true};
    if (text.length > inlineMost) this.lengthen();
  }
  addText(text) {
    const l = this.leaf;
    if (l.long) return void this.addChunk(l, l.el, text);
    l.text += text;
    l.stale = true;
    if (l.text.length > inlineMost) this.lengthen();
  }
  /* Too long to be redrawn each time: raw from here on. */
  lengthen() {
    const l = this.leaf;
    Object.assign(l, {long: true, last: null});
    l.el.replaceChildren();
    l.el.className = 'verbatim';
    this.trial?.undo.push(() => (l.el.className = ''));
    this.addChunk(l, l.el, l.text);
    l.text = '';
  }
  /* Appends text in pieces, so that each addition costs its own length. */
  addChunk(leaf, parent, text) {
    if (!text) return;
    if (!this.trial && leaf.last && leaf.last.length < chunkMost) return leaf.last.appendData(text);
    const node = document.createTextNode(text);
    parent.append(node);
    if (this.trial)
      this.trial.undo.push(() => node.remove());
    else
      leaf.last = node;
  }
  overflow(line) {
    if (!this.leaf?.overflown) {
      this.closeTo(0);
      this.openPara('');
      this.leaf.overflown = true;
      this.lengthen();
      return this.addText(line);
    }
    this.addText('\n' + line);
  }

  /* ---- code */

  openFence(fence, info, depth, indent) {
    this.closeTo(depth);
    const code = el('code');
    const box = codeBox(info.split(/[\s,{]/, 1)[0].slice(0, 40), code);
    this.add(this.place(), box);
    this.leaf = {kind: 'fence', el: box, code, depth: this.stack.length, fence, indent, lines: 0, last: null};
  }
  fenceLine(line) {
    const l = this.leaf, n = indentOf(line, 0);
    if (n < 4 && line.startsWith(l.fence, n) && isRun(line.slice(n).trim(), l.fence[0])) return this.closeLeaf();
    this.addCode((l.lines++ ? '\n' : '') + line.slice(Math.min(n, l.indent)));
  }
  addCode(text) { this.addChunk(this.leaf, this.leaf.code, text); }

  /* ---- tables */

  /* Whether the line belongs to a table: the rule below its head, or a row. */
  tableLine(rest, depth) {
    const l = this.leaf;
    if (!l || depth !== this.stack.length || !rest.includes('|')) return false;
    if (l.kind === 'table') return this.addRow(cellsOf(rest)), true;
    if (l.kind !== 'para' || l.long || l.text.includes('\n') || !l.text.includes('|')) return false;
    const head = cellsOf(l.text), rules = cellsOf(rest);
    if (rules.length !== head.length || !rules.every((c) => /^:?-+:?$/.test(c))) return false;
    const align = rules.map((c) => (c.at(-1) !== ':' ? '' : c[0] === ':' ? 'center' : 'right'));
    const body = el('tbody');
    const table = el('table', {}, el('thead', {}, rowOf(head, 'th', align)), body);
    const box = el('div', {class: 'table-box', tabindex: 0, role: 'region', 'aria-label': 'Table'}, table);
    l.el.replaceWith(box);
    this.trial?.undo.push(() => box.replaceWith(l.el));
    this.leaf = {kind: 'table', el: box, body, align};
    return true;
  }
  /* Further cells go into the last one. */
  addRow(cells) {
    const n = this.leaf.align.length;
    if (cells.length > n) cells.push(cells.splice(n - 1).join(' | '));
    this.add(this.leaf.body, rowOf(cells, 'td', this.leaf.align));
    this.blocks += n;
  }
}

/* ---- parts of lines ---- */

function indentOf(line, at) {
  let n = 0;
  while (line[at + n] === ' ') n++;
  return n;
}
const isBlank = (line, at) => at >= line.length || !line.slice(at).trim();
const isRun = (text, c) => [...text].every((x) => x === c);
const isRule = (line, at) => line.length < 200 && rule.test(line.slice(at));
function headingText(text) {
  text = text.trim();
  let end = text.length;
  while (text[end - 1] === '#') end--;
  return end && text[end - 1] !== ' ' ? text : text.slice(0, end).trimEnd();
}
/* [ ] and [x] at the start of an item. */
function taskMark(text, place) {
  const m = place.tagName === 'LI' && !place.firstChild && /^\[([ xX])\] /.exec(text);
  return m ? (m[1] === ' ' ? '☐ ' : '☑ ') + text.slice(4) : text;
}
/* The cells of a table's line; the last one takes those beyond `columnsMost`. */
function cellsOf(line) {
  const cells = [];
  let from = 0;
  line = line.trim();
  for (let i = 0; i < line.length && cells.length < columnsMost; i++) {
    if (line[i] === '\\') i++;
    else if (line[i] === '|') {
      if (i) cells.push(line.slice(from, i).trim());
      from = i + 1;
    }
  }
  if (from < line.length) cells.push(line.slice(from).trim());
  return cells;
}
const rowOf = (cells, tag, align) =>
    el('tr', {},
       align.map((a, i) => el(tag, {class: a || undefined}, inline((cells[i] || '').replaceAll('\\|', '|')))));

/* A code block with its language and a copy button. */
function codeBox(language, code) {
  return el('div', {class: 'code'},
            el('div', {class: 'code-head'}, el('span', {}, language || 'text'),
               el('button', {type: 'button', onclick: () => copy(code.textContent, 'Code')}, 'Copy code')),
            el('pre', {tabindex: 0, role: 'region', 'aria-label': language ? 'Code, ' + language : 'Code'}, code));
}

/* Draws a complete text. */
function markdown(root, text) {
  const m = new Markdown(root);
  m.push(text);
  m.end();
  return m;
}
