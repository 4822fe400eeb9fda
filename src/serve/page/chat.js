/* chat.js: the conversation, the sampling fields, and what was in effect. */

const chat = {
  turns: [],      /* {role: 'user', content} or {role: 'assistant', versions: [answer], at} */
  running: null,  /* {answer, abort} */
  selected: null, /* the answer that Tokens shows */
};

const fields = [
  {name: 'seed', label: 'Seed', kind: 'seed', neutral: 'drawn, and returned'},
  {name: 'temperature', label: 'Temperature', kind: 'number', min: 0, max: 100, neutral: 1},
  {name: 'top_p', label: 'Top-p', kind: 'number', min: 0, max: 1, neutral: 1},
  {name: 'top_k', label: 'Top-k', kind: 'integer', min: 0, neutral: 'off'},
  {name: 'min_p', label: 'Min-p', kind: 'number', min: 0, max: 1, neutral: 'off'},
  {name: 'repetition_penalty', label: 'Repetition penalty', kind: 'number', min: 0, max: 100, neutral: 1},
  {name: 'max_tokens', label: 'Most tokens', kind: 'integer', min: 1, neutral: 'what fits'},
  {name: 'stop', label: 'Stop before', kind: 'words', neutral: 'nothing'},
  {
    name: 'thinking',
    label: 'Thinking',
    kind: 'choice',
    options: [['', 'as the template has it'], ['true', 'on'], ['false', 'off']]
  },
  {name: 'system', label: 'System prompt', kind: 'area', neutral: 'none'},
];

function makeFields() {
  fill($('fields'), fields.map((f) => {
    const common = {
      id: 'field-' + f.name,
      name: f.name,
      class: f.kind === 'area' ? '' : 'mono',
      placeholder: f.kind === 'number' || f.kind === 'integer' && f.name !== 'max_tokens' ? 'model’s own' :
                                                                                            String(f.neutral ?? ''),
      autocomplete: 'off'
    };
    const input = f.kind === 'choice' ?
        el('select', common, f.options.map(([v, t]) => el('option', {value: v}, t))) :
        f.kind === 'area' ?
        el('textarea', {...common, rows: 2}) :
        f.kind === 'number' || f.kind === 'integer' ?
        el('input', {...common, type: 'number', min: f.min, max: f.max, step: f.kind === 'integer' ? 1 : 'any'}) :
        el('input', {
          ...common,
          inputmode: f.kind === 'seed' ? 'numeric' : undefined,
          pattern: f.kind === 'seed' ? '[0-9]*' : undefined
        });
    const label = el('label', {class: f.kind}, el('span', {}, f.label), input);
    if (f.kind === 'seed') {
      label.append(
          el('button', {type: 'button', id: 'keep-seed', title: 'Put the last answer’s seed here', onclick: keepSeed},
             'keep'));
    }
    return label;
  }));
  $('fields').addEventListener('input', showEffect);
}
function keepSeed() {
  const a = lastAnswer();
  if (a?.invar?.seed === undefined) return toast('No answer has told its seed yet');
  $('field-seed').value = a.invar.seed;
  showEffect();
}

/* The fields that are filled in, as a request has them. */
function samplingBody() {
  const body = {};
  for (const f of fields) {
    const value = $('field-' + f.name).value;
    if (value === '' || f.name === 'system') continue;
    if (f.kind === 'seed' && !/^\d+$/.test(value)) continue;
    if (f.kind === 'choice')
      body.chat_template_kwargs = {enable_thinking: value === 'true'};
    else
      body[f.name] = f.kind === 'number' || f.kind === 'integer' ? Number(value) : value;
  }
  return body;
}

/* The newest that is not a fork. */
function lastAnswer() {
  for (const t of chat.turns.toReversed()) {
    const found = t.versions?.findLast((a) => a.path === '/v1/chat/completions' && a.invar);
    if (found) return found;
  }
  return null;
}

/* ---- what was in effect ---------------------------------------------------------------------------------- */

const quietValues = {
  top_k: 0,
  min_p: 0,
  top_p: 1,
  repetition_penalty: 1,
  presence_penalty: 0,
  frequency_penalty: 0,
  ignore_eos: false,
  skip_special_tokens: true
};
function effective(invar) {
  const list = [];
  for (const [name, value] of Object.entries(invar?.parameters || {})) {
    if (name === 'seed' || value === null || quietValues[name] === value ||
        (typeof value === 'object' && !Object.keys(value).length))
      continue;
    list.push(name.replaceAll('_', '-') + ' ' + (typeof value === 'object' ? JSON.stringify(value) : plain(value)));
  }
  return list;
}

const spaced = (list) => list.flatMap((text, i) => [i ? ' · ' : '', el('span', {class: 'whole'}, text)]);

/* The line above the message field: what the next answer will be asked with, and what the last one had. */
function showEffect() {
  const a = lastAnswer();
  const wanted = samplingBody();
  const known = a?.invar?.parameters || {};
  for (const f of fields) {
    const input = $('field-' + f.name);
    if (f.kind !== 'choice' && f.name in known && known[f.name] !== null && !Array.isArray(known[f.name])) {
      input.placeholder = quietValues[f.name] === known[f.name] ? String(f.neutral) : plain(known[f.name]);
    }
  }
  const parts = [el('b', {}, 'seed ' + (wanted.seed ?? 'drawn each time'))];
  const base = {...known};
  for (const [k, v] of Object.entries(wanted))
    if (typeof v !== 'object') base[k] = v;
  delete base.seed;
  const list = effective({parameters: base});
  parts.push(el('span', {}, list.length ? spaced(list) : 'the model’s own sampling'));
  fill($('effect'), parts);
}

/* ---- asking -------------------------------------------------------------------------------------------- */

function messagesBefore(index) {
  const list = [];
  const system = $('field-system').value.trim();
  if (system) list.push({role: 'system', content: system});
  for (const t of chat.turns.slice(0, index)) {
    if (t.role === 'user')
      list.push({role: 'user', content: t.content});
    else if (t.versions[t.at])
      list.push({role: 'assistant', content: t.versions[t.at].text});
  }
  return list;
}

function askAbout(text) {
  if (!text.trim() || chat.running) return;
  chat.turns.push({role: 'user', content: text});
  const body = {
    model: server.model,
    messages: messagesBefore(chat.turns.length),
    ...samplingBody(),
    logprobs: true,
    top_logprobs: 8,
    return_token_ids: true
  };
  chat.turns.push({role: 'assistant', versions: [], at: 0});
  runVersion(chat.turns.length - 1, newAnswer('/v1/chat/completions', body), '');
}

/* The same request again, with the seed that it had: the same bits. */
function again(turn, answer) {
  const body = {...answer.body};
  if (answer.invar?.seed !== undefined) body.seed = answer.invar.seed;
  const next = newAnswer(answer.path, body, answer.given);
  next.like = answer;
  runVersion(turn, next, answer.given.length ? answer.label : 'again, the same seed');
}

/* Token `at` of an answer becomes `token`, and the rest is generated anew with the same seed. */
function forkAt(answer, at, token) {
  const turn = chat.turns.findIndex((t) => t.versions?.includes(answer));
  if (turn < 0 || chat.running) return toast('Another answer is still running');
  if (!answer.promptIds || answer.tokens.slice(0, at).some((t) => t.id === undefined) || token.id === undefined) {
    return toast('The server did not say the token ids');
  }
  const given = [
    ...answer.tokens.slice(0, at), {...token, top: answer.tokens[at].top, forced: token.id !== answer.tokens[at].id}
  ];
  const prompt = [...(answer.prefixIds || answer.promptIds), ...given.map((t) => t.id)];
  const {
    messages,
    chat_template_kwargs,
    top_logprobs,
    logprobs,
    seed,
    max_tokens,
    max_completion_tokens,
    prompt: old,
    ...rest
  } = answer.body;
  const body = {
    ...rest,
    prompt,
    seed: answer.invar?.seed ?? seed ?? 0,
    logprobs: 8,
    skip_special_tokens: false,
    return_token_ids: true
  };
  /* What is left: of the limit, or of the sequence; completions without a limit would end after 16. */
  const most = answer.forkedFrom ? answer.body.max_tokens : answer.invar?.parameters?.max_tokens ?? max_tokens;
  body.max_tokens =
      Math.max(1, most ? most + answer.given.length - given.length : (server.maxLength || 2048) - prompt.length);
  const next = newAnswer('/v1/completions', body, given);
  next.prefixIds = answer.prefixIds || answer.promptIds;
  next.forkedFrom = {answer, at};
  go('chat');
  runVersion(turn, next, 'fork at token ' + (at + 1) + ': ' + visible(token.text ?? '#' + token.id));
}

async function runVersion(turnIndex, answer, label) {
  const turn = chat.turns[turnIndex];
  answer.label = label;
  turn.versions.push(answer);
  turn.at = turn.versions.length - 1;
  const abort = new AbortController();
  chat.running = {answer, abort};
  showChat();
  showRunning();
  let drawn = 0;
  await ask(answer, {
    signal: abort.signal,
    changed: () => {
      if (drawn) return;
      drawn = requestAnimationFrame(() => {
        drawn = 0;
        drawAnswer(turnIndex);
      });
    }
  });
  cancelAnimationFrame(drawn);
  chat.running = null;
  chat.selected = answer;
  if (answer.fingerprint) showFingerprint(answer.fingerprint);
  showChat();
  showRunning();
  showEffect();
  showTokens();
  poll();
}
function stopAnswer() { chat.running?.abort.abort(); }
function showRunning() {
  const busy = Boolean(chat.running);
  $('send').textContent = busy ? 'Stop' : 'Send';
  $('send').classList.toggle('stop', busy);
}

/* ---- drawing -------------------------------------------------------------------------------------------- */

const examples = [
  'Omar has 12 apples. Then Omar buys 9 more. Omar gives away 6. How many apples are left for Omar?',
  'What is 17 * 6?',
  'Mia has 34 marbles. Mia loses 15. How many marbles are left?',
];

function showChat() {
  if (!chat.turns.length) {
    fill(
        $('messages'),
        el('div', {class: 'empty'}, el('h1', {}, 'Same request, same bits.'),
           el('p', {},
              'Every answer here comes with its seed, the engine’s fingerprint and a digest over every token and every ' +
                  'bit of its log-probability. Ask twice, ask in a crowd: the digest stays.'),
           el('div', {class: 'examples'},
              examples.map((t) => el('button', {type: 'button', onclick: () => askAbout(t)}, t)))));
    return;
  }
  fill(
      $('messages'),
      chat.turns.map(
          (t, i) => (t.role === 'user' ? userTurn(t, i) : el('article', {class: 'turn assistant', id: 'turn-' + i}))));
  chat.turns.forEach((t, i) => t.role === 'assistant' && drawAnswer(i));
}

function userTurn(turn, i) {
  const article = el('article', {class: 'turn user'}, el('div', {class: 'said'}, turn.content));
  const edit =
      el('button', {
        type: 'button',
        onclick: () => {
          const area = el('textarea', {rows: 3, 'aria-label': 'Edit the message'});
          area.value = turn.content;
          const put = () => {
            if (chat.running) return;
            chat.turns.length = i;
            askAbout(area.value);
          };
          area.addEventListener('keydown', (e) => {
            if (e.key === 'Enter' && !e.shiftKey) e.preventDefault(), put();
            if (e.key === 'Escape') e.stopPropagation(), showChat();
          });
          fill(
              article, area,
              el('div', {class: 'acts'},
                 el('button', {type: 'button', class: 'primary', onclick: put}, 'Ask again from here'),
                 el('button', {type: 'button', onclick: showChat}, 'Leave it')));
          area.focus();
        }
      },
         'Edit');
  article.append(el('div', {class: 'acts'}, edit));
  return article;
}

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
