/* answer.js: draws an answer while it grows, and the facts below it once it has ended. */

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

/* ---- its text ---- */

/* The drawn state of an answer, so that a growing answer costs only its growth. */
const views = new WeakMap();
function viewOf(a) {
  if (views.has(a)) return views.get(a);
  const thought = el('div', {class: 'prose'});
  const said = el('div', {class: 'said'});
  const view = {
    think: el('details', {class: 'think', open: true}, el('summary', {}, 'Thinking'), thought),
    thought,
    said,
    reasoning: '', /* drawn text */
    text: '',
    markdown: new Markdown(said),
    raw: false, /* raw text */
    ended: false
  };
  views.set(a, view);
  return view;
}
/* The part of a text behind what is drawn of it; the whole text if the drawn part is no longer its start, as the
 * lengths show (comparing would cost the whole length each time). */
function takeFresh(a, name, drawn) {
  const text = a[name], fresh = a.fresh[name];
  a.fresh[name] = '';
  const again = drawn.length + fresh.length !== text.length || (a.state === 'done' && drawn + fresh !== text);
  return {again, more: again ? text : fresh};
}
/* Updates the view to the current answer. */
function growView(a) {
  const v = viewOf(a);
  const running = a.state === 'running' || a.state === 'new';
  const thought = takeFresh(a, 'reasoning', v.reasoning);
  if (thought.again) v.thought.replaceChildren();
  const piece = v.thought.firstChild ? thought.more : thought.more.trimStart();
  if (piece) v.thought.append(piece);
  v.reasoning = a.reasoning;
  const said = takeFresh(a, 'text', v.text);
  if (said.again) restartView(v);
  if (said.more && v.raw)
    v.said.firstChild.append(v.said.firstChild.firstChild ? said.more : said.more.replace(/^\n+/, ''));
  else if (said.more)
    v.markdown.push(said.more);
  v.text = a.text;
  if (!running && !v.ended && !v.raw) v.markdown.end();
  v.ended = !running;
  v.said.classList.toggle('growing', running);
  return v;
}
function restartView(v) {
  v.text = '';
  v.ended = false;
  v.markdown.restart();
  if (v.raw) v.said.append(el('pre', {class: 'raw', tabindex: 0, role: 'region', 'aria-label': 'The answer’s text'}));
}
function showRaw(a, raw) {
  const v = viewOf(a);
  v.raw = raw;
  restartView(v);
  growView(a);
}

function drawAnswer(i) {
  const article = $('turn-' + i);
  const turn = chat.turns[i];
  const a = turn?.versions[turn.at];
  if (!article || !a) return;
  const box = $('messages');
  const follow = box.scrollHeight - box.scrollTop - box.clientHeight < 90;
  const v = growView(a);
  const parts = [v.thought.firstChild && v.think, v.said];
  if (a.error) parts.push(el('p', {class: 'error'}, a.error));
  if (v.ended) parts.push(answerFoot(i, turn, a));
  const wanted = parts.filter(Boolean);
  if (wanted.length !== article.childNodes.length || wanted.some((n, k) => n !== article.childNodes[k]))
    fill(article, wanted);
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
  if (a.text) {
    acts.append(act('Copy', () => copy(a.text, 'Answer'), 'Copy the answer as text'));
    const raw = viewOf(a).raw;
    acts.append(el('button', {
      type: 'button',
      'aria-pressed': String(raw),
      title: 'The text as the model wrote it',
      onclick: (e) => {
        showRaw(a, !viewOf(a).raw);
        e.currentTarget.setAttribute('aria-pressed', String(viewOf(a).raw));
      }
    }, 'Raw'));
  }
  acts.append(act('curl', () => copy(curlOf(a), 'curl command'), 'Copy as a curl command'));
  if (a.invar?.receipt)
    acts.append(act('Receipt', () => save('receipt.json', receiptText(a.invar.receipt)), 'For invar replay'));
  return el('footer', {}, facts, acts);
}
const receiptText = (r) => (typeof r === 'string' ? r : JSON.stringify(r)).trim() + '\n';
