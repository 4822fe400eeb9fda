/* chat.js: the conversation: asking, stopping, asking again, forks. */

const chat = {
  turns: [],      /* {role: 'user', content} or {role: 'assistant', versions: [answer], at} */
  running: null,  /* {answer, abort, over: a promise} */
  selected: null, /* the answer shown in Tokens */
  id: null,       /* its key in the history */
  title: ''
};

/* The newest that is not a fork. */
function lastAnswer() {
  for (const t of chat.turns.toReversed()) {
    const found = t.versions?.findLast((a) => a.path === '/v1/chat/completions' && a.invar);
    if (found) return found;
  }
  return null;
}

/* ---- asking ---- */

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

/* Returns whether it was sent. */
function askAbout(text) {
  if (!text.trim() || chat.running || !checkSampling()) return false;
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
  return true;
}

/* Repeats the request with its seed: the same bits. */
function again(turn, answer) {
  const body = {...answer.body};
  if (answer.invar?.seed !== undefined) body.seed = answer.invar.seed;
  const next = newAnswer(answer.path, body, answer.given);
  next.like = answer;
  runVersion(turn, next, answer.given.length ? answer.label : 'again, the same seed');
}

/* Replaces token `at` of an answer by `token`, and generates the rest again with the same seed. */
function forkAt(answer, at, token) {
  const turn = chat.turns.findIndex((t) => t.versions?.includes(answer));
  if (turn < 0 || chat.running) return toast('Another answer is still running');
  if (!answer.promptIds || answer.tokens.slice(0, at).some((t) => t.id === undefined) || token.id === undefined) {
    return toast('The server did not return the token ids');
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
  /* The remaining limit, or the rest of the context; completions without a limit would end after 16. */
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
  let over;
  chat.running = {answer, abort, over: new Promise((done) => (over = done))};
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
  keepChat();
  announce(answer.error ? 'The answer failed: ' + answer.error : `Answer ${answer.state}, ${plural(answer.tokens.length, 'token')}`);
  poll();
  over();
}
function stopAnswer() { chat.running?.abort.abort(); }
function showRunning() {
  const busy = Boolean(chat.running);
  $('send').textContent = busy ? 'Stop' : 'Send';
  $('send').classList.toggle('stop', busy);
}

/* ---- drawing ---- */

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
              'Every answer comes with its seed, the engine’s fingerprint and a digest over every token and every ' +
                  'bit of its log-probability. The same seed gives the same digest, alone or among many requests: Again, ' +
                  'below an answer, asks with its seed.'),
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
            if (chat.running || !area.value.trim() || !checkSampling()) return;
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
