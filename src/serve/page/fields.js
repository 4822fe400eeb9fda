/* fields.js: the sampling fields, errors of their values, and the values in effect. */

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

/* ---- faults: a value that cannot be sent is shown at its field, and nothing is sent until it is corrected  */

const seedLeast = -(2n ** 63n), seedMost = 2n ** 64n - 1n;
const quoted = (text) => '“' + (text.length > 40 ? text.slice(0, 40) + '…' : text) + '”';
const numberText = /^\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*$/;

function wantedOf(input) {
  if (input.dataset.kind === 'seed') return 'an integer from −2⁶³ to 2⁶⁴ − 1';
  if (input.dataset.kind === 'key') return 'ASCII characters';
  const whole = input.dataset.kind === 'integer' ? 'a whole number' : 'a number';
  if (input.min !== '' && input.max !== '') return `${whole} from ${input.min} to ${input.max}`;
  return input.min !== '' ? `${whole}, ${input.min} or more` : whole;
}
/* Why the field's value cannot be sent; '' if it can. Empty fields are omitted from the request. */
function faultOf(input) {
  const text = input.value.trim(), v = input.validity;
  const wanted = 'Wanted ' + wantedOf(input) + ', found ';
  if (input.dataset.kind === 'seed') {
    if (!text) return input.required ? wanted + 'nothing.' : '';
    const seed = /^-?\d{1,20}$/.test(text) ? BigInt(text) : null;
    return seed !== null && seed >= seedLeast && seed <= seedMost ? '' : wanted + quoted(text) + '.';
  }
  if (input.dataset.kind === 'key') { /* allowed in a header; the key itself is not shown */
    const odd = [...text].find((c) => c < ' ' || c > '~');
    return odd ? `Wanted ${wantedOf(input)}, found U+${odd.codePointAt(0).toString(16).toUpperCase().padStart(4, '0')}.` :
                 '';
  }
  if (v.badInput) return wanted + 'what is no number.';
  return v.rangeUnderflow || v.rangeOverflow || v.stepMismatch ? wanted + quoted(text) + '.' : '';
}
function showFault(input, why) {
  input.setAttribute('aria-invalid', String(Boolean(why)));
  $(input.id + '-fault').textContent = why;
}
function checkField(input) {
  const why = faultOf(input);
  showFault(input, why);
  return !why;
}
/* Whether all fields can be sent; otherwise the first invalid one gets the focus. `reveal` shows the fields. */
function checkFields(inputs, reveal) {
  const bad = inputs.filter((input) => !checkField(input));
  if (!bad.length) return true;
  reveal?.();
  bad[0].focus();
  return false;
}
/* An error is shown when the field loses focus or the page fills it, and disappears as soon as it is corrected. */
function watchField(input) {
  input.addEventListener('change', () => checkField(input));
  input.addEventListener('input', () => {
    if (input.getAttribute('aria-invalid') === 'true') checkField(input);
  });
  if (input.type === 'number') {
    /* Browsers silently drop text that is not a number. */
    const refuse = (e, data) => {
      const text = data?.getData('text/plain') || '';
      if (numberText.test(text)) return showFault(input, '');
      e.preventDefault();
      showFault(input, `Not inserted: wanted ${wantedOf(input)}, found ${text ? quoted(text) : 'no text'}.`);
    };
    input.addEventListener('paste', (e) => refuse(e, e.clipboardData));
    input.addEventListener('drop', (e) => refuse(e, e.dataTransfer));
  } else {
    input.addEventListener('paste', () => setTimeout(() => checkField(input)));
  }
}

/* This page cannot send files: the model takes text. */
const hasFiles = (data) => Boolean(data) && [...data.types].includes('Files') && !data.getData('text/plain');
function refuseFiles(e, data) {
  if (!hasFiles(data)) return;
  e.preventDefault();
  const names = [...(data.files || [])].map((f) => f.name).filter(Boolean);
  showFault($('prompt'), `Not inserted: wanted text, found ${names.length ? quoted(names.join(', ')) : 'a file'}. ` +
                             'The model takes text only: copy the text of a file and paste that.');
  if (current !== 'chat') go('chat');
  $('prompt').focus();
}
function watchFiles() {
  addEventListener('paste', (e) => refuseFiles(e, e.clipboardData));
  addEventListener('dragover', (e) => [...e.dataTransfer.types].includes('Files') && e.preventDefault());
  addEventListener('drop', (e) => refuseFiles(e, e.dataTransfer));
  $('prompt').addEventListener('input', () => showFault($('prompt'), ''));
}

/* ---- the sampling fields ---- */

const fieldInputs = () => fields.filter((f) => ['seed', 'number', 'integer'].includes(f.kind))
                              .map((f) => $('field-' + f.name));
const checkSampling = () => checkFields(fieldInputs(), () => (go('chat'), openSide(true)));

function makeFields() {
  fill($('fields'), fields.map(fieldOf));
  fieldInputs().forEach(watchField);
  $('fields').addEventListener('input', showEffect);
}
function fieldOf(f) {
  const id = 'field-' + f.name;
  const checked = ['seed', 'number', 'integer'].includes(f.kind);
  const common = {
    id,
    name: f.name,
    class: f.kind === 'area' ? '' : 'mono',
    placeholder: f.kind === 'number' || f.kind === 'integer' && f.name !== 'max_tokens' ? 'model’s own' :
                                                                                          String(f.neutral ?? ''),
    'data-kind': f.kind,
    'aria-describedby': checked ? id + '-fault' : undefined,
    autocomplete: 'off'
  };
  const input = f.kind === 'choice' ?
      el('select', common, f.options.map(([v, t]) => el('option', {value: v}, t))) :
      f.kind === 'area' ?
      el('textarea', {...common, rows: 2}) :
      f.kind === 'number' || f.kind === 'integer' ?
      el('input', {...common, type: 'number', min: f.min, max: f.max, step: f.kind === 'integer' ? 1 : 'any'}) :
      el('input', common);
  return el('div', {class: 'field ' + f.kind}, el('label', {}, el('span', {}, f.label), input),
            f.kind === 'seed' && el('button', {
              type: 'button',
              id: 'keep-seed',
              title: 'Put the last answer’s seed here',
              onclick: keepSeed
            }, 'keep'),
            checked && el('p', {class: 'fault', id: id + '-fault', role: 'alert'}));
}
function keepSeed() {
  const a = lastAnswer();
  if (a?.invar?.seed === undefined) return toast('No answer with a seed yet');
  $('field-seed').value = a.invar.seed;
  checkField($('field-seed'));
  showEffect();
}

/* The filled-in fields in a request's form; nothing is sent while one is invalid. */
function samplingBody() {
  const body = {};
  for (const f of fields) {
    const input = $('field-' + f.name);
    const value = f.kind === 'seed' ? input.value.trim() : input.value;
    if (value === '' || f.name === 'system' || faultOf(input)) continue;
    if (f.kind === 'choice')
      body.chat_template_kwargs = {enable_thinking: value === 'true'};
    else
      body[f.name] = f.kind === 'number' || f.kind === 'integer' ? Number(value) : value;
  }
  return body;
}

/* ---- what was in effect ---- */

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

/* The line above the message field: the parameters of the next answer and of the last one. */
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
  const fault = faultOf($('field-seed'));
  const parts = [el('b', {class: fault && 'bad'}, 'seed ' + (fault ? 'not valid' : wanted.seed ?? 'drawn each time'))];
  const base = {...known};
  for (const [k, v] of Object.entries(wanted))
    if (typeof v !== 'object') base[k] = v;
  delete base.seed;
  const list = effective({parameters: base});
  parts.push(el('span', {}, list.length ? spaced(list) : 'the model’s own sampling'));
  fill($('effect'), parts);
}

