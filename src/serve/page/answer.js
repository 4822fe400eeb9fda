/* answer.js: an answer drawn as it grows, and what stands below it when it has ended. */

/* Fenced code, inline code, bold and headings; all else stays as it was written. */
function prose(text) {
  const out = [];
  text.split(/^```[^\n]*\n([\s\S]*?)(?:^```[ \t]*$|$(?![\s\S]))/m).forEach((part, i) => {
    if (i % 2) return out.push(el('pre', {}, el('code', {}, part.replace(/\n$/, ''))));
    const p = el('div', {class: 'prose'});
    part.replace(/^\n+|\n+$/g, '').split(/(`[^`\n]+`|\*\*[^*\n]+\*\*|^#{1,4} [^\n]*$)/m).forEach((s, j) => {
      if (j % 2 === 0)
        p.append(s);
      else if (s[0] === '`')
        p.append(el('code', {}, s.slice(1, -1)));
      else
        p.append(el('strong', {}, s.replace(/^#+ |^\*\*|\*\*$/g, '')));
    });
    if (p.textContent) out.push(p);
  });
  return out;
}

function speed(a) {
  const n = a.tokens.length - a.given.length;
  if (!a.first || n < 1) return null;
  const list = [seconds((a.first - a.started) / 1e3) + ' to the first'];
  if (n > 2 && a.ended > a.first + 1) list.push(rate((n - 1) / ((a.ended - a.first) / 1e3)) + ' tokens/s');
  return list.join(' · ');
}

/* The digest, and whether this page computed the same one. */
function digestMark(a) {
  const claimed = a.invar?.digest;
  if (!claimed) return null;
  const good = a.digest === null ? null : a.digest === claimed;
  const title = claimed +
      (good               ? '\nThis page computed it from the tokens that it got' :
           good === false ? '\nThis page computed ' + a.digest :
                            '');
  return el(
      'button', {
        type: 'button',
        class: 'digest mono ' +
            (good === false ? 'bad' :
                 good       ? 'good' :
                              ''),
        title,
        onclick: () => copy(claimed, 'Digest')
      },
      el('small', {}, 'digest '), shortDigest(claimed),
      good               ? ' ✓' :
          good === false ? ' ≠ ' + shortDigest(a.digest) :
                           '');
}

function drawAnswer(i) {
  const article = $('turn-' + i);
  const turn = chat.turns[i];
  const a = turn?.versions[turn.at];
  if (!article || !a) return;
  const box = $('messages');
  const follow = box.scrollHeight - box.scrollTop - box.clientHeight < 90;
  const running = a.state === 'running';
  const parts = [];
  if (a.reasoning.trim()) {
    const was = article.querySelector('details.think');
    const open = was ? was.open : true;
    parts.push(
        el('details', {class: 'think', open}, el('summary', {}, 'Thinking'),
           el('div', {class: 'prose'}, a.reasoning.trim())));
  }
  parts.push(el('div', {class: 'said' + (running ? ' growing' : '')}, prose(a.text)));
  if (a.error) parts.push(el('p', {class: 'error'}, a.error));
  if (!running) parts.push(answerFoot(i, turn, a));
  fill(article, parts);
  if (follow) box.scrollTop = box.scrollHeight;
}

function answerFoot(i, turn, a) {
  const facts = el('div', {class: 'foot mono'});
  const add = (text, title) => text && facts.append(el('span', {title}, text));
  if (a.invar?.seed !== undefined) facts.append(el('b', {}, 'seed ' + a.invar.seed));
  const list = effective(a.invar);
  if (list.length) facts.append(el('span', {title: JSON.stringify(a.invar.parameters, null, 1)}, spaced(list)));
  add(plural(a.tokens.length - a.given.length, 'token') +
      (a.finish && a.finish !== 'stop' ? ', ' + a.finish :
           a.state === 'stopped'       ? ', stopped' :
                                         ''));
  add(speed(a));
  add(a.fingerprint);
  const mark = digestMark(a);
  if (mark) facts.append(mark);
  if (a.like?.digest && a.digest) {
    const same = a.like.digest === a.digest;
    facts.append(el(
        'span', {class: same ? 'good' : 'bad'}, same ? 'equal to the first, bit for bit' : 'differs from the first'));
  }
  const act = (text, f, title) => el('button', {type: 'button', title, onclick: f}, text);
  const acts = el('div', {class: 'acts'});
  if (turn.versions.length > 1) {
    const to = (d) => () =>
        (turn.at = Math.min(turn.versions.length - 1, Math.max(0, turn.at + d)),
         (chat.selected = turn.versions[turn.at]), showChat(), showTokens());
    acts.append(el(
        'span', {class: 'versions'},
        el('button', {type: 'button', 'aria-label': 'Earlier version', disabled: turn.at === 0, onclick: to(-1)}, '‹'),
        ` ${turn.at + 1} / ${turn.versions.length} `,
        el('button', {
          type: 'button',
          'aria-label': 'Later version',
          disabled: turn.at === turn.versions.length - 1,
          onclick: to(1)
        },
           '›'),
        a.label ? el('em', {}, a.label) : ''));
  }
  if (a.tokens.length)
    acts.append(act(
        'Tokens', () => ((chat.selected = a), showTokens(), go('tokens')), 'Every token, its probability, and forks'));
  if (a.path === '/v1/chat/completions' && a.state === 'done')
    acts.append(act('Prove', () => (proveAnswer(a), go('proof')), 'Run it again in many ways'));
  if (!chat.running) acts.append(act('Again', () => again(i, a), 'The same request with the same seed'));
  acts.append(act('curl', () => copy(curlOf(a), 'curl command'), 'Copy as a curl command'));
  if (a.invar?.receipt)
    acts.append(act('Receipt', () => save('receipt.json', receiptText(a.invar.receipt)), 'For invar replay'));
  return el('footer', {}, facts, acts);
}
const receiptText = (r) => (typeof r === 'string' ? r : JSON.stringify(r)).trim() + '\n';
