/* live.js: reads /metrics every second and draws it. Understands three dialects of names. */

const live = {
  history: [],
  last: null,
  timer: 0,
  failures: 0
};
const historyMax = 180;
const histogramRows = 10;

/* Prometheus text to a map: name -> [{labels, value}]. */
function parseMetrics(text) {
  const map = new Map();
  for (const line of text.split('\n')) {
    if (!line || line[0] === '#') continue;
    const m = /^([A-Za-z_:][A-Za-z0-9_:]*)(?:\{(.*)\})?\s+(\S+)/.exec(line);
    if (!m) continue;
    const labels = {};
    for (const l of (m[2] || '').matchAll(/([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"/g))
      labels[l[1]] = l[2].replace(/\\(.)/g, (_, c) => (c === 'n' ? '\n' : c));
    if (!map.has(m[1])) map.set(m[1], []);
    map.get(m[1]).push({labels, value: m[3] === '+Inf' ? Infinity : Number(m[3])});
  }
  return map;
}

const metricNames = {
  running: ['invar_requests_running', 'vllm:num_requests_running', 'sglang:num_running_reqs'],
  waiting: ['invar_requests_waiting', 'vllm:num_requests_waiting', 'sglang:num_queue_reqs'],
  kv: ['invar_kv_usage_ratio', 'vllm:kv_cache_usage_perc', 'sglang:token_usage'],
  pages: ['invar_kv_pages'],
  held: ['invar_kv_pages_held'],
  cachedPages: ['invar_kv_pages_cached'],
  prompt: ['invar_prompt_tokens_total', 'vllm:prompt_tokens_total', 'sglang:prompt_tokens_total'],
  generated: ['invar_generated_tokens_total', 'vllm:generation_tokens_total', 'sglang:generation_tokens_total'],
  cached: ['invar_cached_tokens_total', 'vllm:prefix_cache_hits_total', 'sglang:cached_tokens_total'],
  preemptions: ['invar_preemptions_total', 'vllm:num_preemptions_total'],
  refused: ['invar_requests_refused_total'],
  steps: ['invar_steps_total'],
  computed: ['invar_computed_tokens_total'],
  drafted: ['invar_drafted_tokens_total'],
  accepted: ['invar_accepted_tokens_total'],
  version: ['invar_weight_version'],
  paused: ['invar_paused'],
  failed: ['invar_failed'],
};
const histogramNames = {
  first:
      ['invar_time_to_first_token_seconds', 'vllm:time_to_first_token_seconds', 'sglang:time_to_first_token_seconds'],
  gap: ['invar_inter_token_seconds', 'vllm:inter_token_latency_seconds', 'sglang:inter_token_latency_seconds'],
  total: ['invar_request_seconds', 'vllm:e2e_request_latency_seconds', 'sglang:e2e_request_latency_seconds'],
};

async function readMetrics() {
  const map = parseMetrics(await (await send('/metrics')).text());
  const sum = (names, suffix = '') => {
    const found = names.map((n) => map.get(n + suffix)).find(Boolean);
    return found ? found.reduce((s, x) => s + x.value, 0) : NaN;
  };
  const sample = {time: performance.now() / 1e3, histograms: {}, finished: []};
  for (const [key, names] of Object.entries(metricNames)) sample[key] = sum(names);
  for (const [key, names] of Object.entries(histogramNames)) {
    const rows = names.map((n) => map.get(n + '_bucket')).find(Boolean) || [];
    const by = new Map();
    for (const r of rows) {
      const le = r.labels.le === '+Inf' ? Infinity : Number(r.labels.le);
      by.set(le, (by.get(le) || 0) + r.value);
    }
    sample.histograms[key] = {
      buckets: [...by].sort((a, b) => a[0] - b[0]),
      sum: sum(names, '_sum'),
      count: sum(names, '_count')
    };
  }
  for (const [name, rows] of map) {
    for (const r of rows)
      if (r.labels.finished_reason || r.labels.finish)
        sample.finished.push([r.labels.finished_reason || r.labels.finish, r.value, name]);
  }
  return sample;
}

/* The p-quantile of the values between two samples, interpolated inside its bucket. */
function quantile(now, before, p) {
  const was = new Map(before?.buckets || []);
  const counts = now.buckets.map(([le, n]) => [le, n - (was.get(le) || 0)]);
  const all = counts.length ? counts.at(-1)[1] : 0;
  if (!(all > 0)) return NaN;
  let low = 0, below = 0;
  for (const [le, n] of counts) {
    if (n >= p * all) return le === Infinity ? low : low + (le - low) * ((p * all - below) / Math.max(1e-9, n - below));
    low = le;
    below = n;
  }
  return low;
}

async function poll() {
  clearTimeout(live.timer);
  try {
    const s = await readMetrics();
    const past = live.history.filter((h) => s.time - h.time >= 0.5);
    const before = past.at(-1);
    const window = past.find((h) => s.time - h.time <= 30) || before;
    const span = before ? s.time - before.time : 0;
    s.perSecond = before ? Math.max(0, (s.generated - before.generated) / span) : 0;
    s.promptPerSecond = before ? Math.max(0, (s.prompt - before.prompt) / span) : 0;
    const newPrompt = window ? s.prompt - window.prompt : 0;
    s.hit = newPrompt > 0 ? (s.cached - window.cached) / newPrompt : s.prompt > 0 ? s.cached / s.prompt : 0;
    s.first50 = quantile(s.histograms.first, window?.histograms.first, 0.5);
    s.gap50 = quantile(s.histograms.gap, window?.histograms.gap, 0.5);
    s.gap99 = quantile(s.histograms.gap, window?.histograms.gap, 0.99);
    live.history.push(s);
    if (live.history.length > historyMax) live.history.shift();
    live.failures = 0;
    live.error = null;
    showStatus(s);
  } catch (e) {
    live.failures++;
    live.error = e.message;
    live.status = e.status;
    showStatus(null);
  }
  if (current === 'live') drawLive();
  live.timer = setTimeout(poll, document.hidden ? 10000 : live.failures > 3 ? 5000 : 1000);
}

/* ---- drawing ---- */

const charts = [
  {key: 'running', name: 'Running', unit: 'requests', show: rate, floor: 4},
  {key: 'waiting', name: 'Waiting', unit: 'requests', show: rate, floor: 4},
  {key: 'perSecond', name: 'Generated', unit: 'tokens/s', show: rate, floor: 10},
  {key: 'promptPerSecond', name: 'Prompts', unit: 'tokens/s', show: rate, floor: 10},
  {key: 'kv', name: 'KV cache held', unit: '', show: percent, top: 1, kv: true},
  {key: 'hit', name: 'Prefix hits', unit: 'last 30 s', show: percent, top: 1},
  {key: 'first50', name: 'First token', unit: 'median, 30 s', show: seconds, floor: 0.001},
  {key: 'gap50', name: 'Between tokens', unit: 'median, 30 s', show: seconds, floor: 0.0001},
];

function drawLive() {
  const s = live.history.at(-1);
  const note = $('live-note');
  note.hidden = !live.error;
  if (live.error)
    note.textContent = live.status === 401 ? 'The server needs its API key: enter it with the key symbol above.' :
                                             live.error + '; trying again.';
  if (!s) return;
  if (!$('charts').children.length) {
    fill(
        $('charts'),
        charts.map(
            (c) =>
                el('section', {class: 'card chart', id: 'chart-' + c.key}, el('h2', {}, c.name),
                   el('p', {class: 'value'}, el('b', {class: 'mono'}), el('span', {}, c.unit)),
                   el('div', {class: 'plot'}))));
    for (const c of charts)
      $('chart-' + c.key).querySelector('.plot').addEventListener('pointermove', (e) => readPlot(c, e));
    for (const c of charts)
      $('chart-' + c.key)
          .querySelector('.plot')
          .addEventListener('pointerleave', () => ((c.at = undefined), drawChart(c)));
  }
  charts.forEach(drawChart);
  drawHistogram($('hist-first'), s.histograms.first);
  drawHistogram($('hist-gap'), s.histograms.gap);
  drawTotals(s);
}

function readPlot(c, e) {
  const box = e.currentTarget.getBoundingClientRect();
  const back = Math.round((1 - (e.clientX - box.left) / box.width) * (Math.max(60, live.history.length) - 1));
  c.at = Math.max(0, Math.min(live.history.length - 1, back));
  drawChart(c);
}

function drawChart(c) {
  const card = $('chart-' + c.key);
  const values = live.history.map((h) => h[c.key]);
  const known = values.filter((v) => isFinite(v));
  const most = c.top || Math.max(c.floor, ...known) * 1.08;
  const back = c.at ?? 0;
  const value = values[values.length - 1 - back];
  card.querySelector('.value b').textContent = isFinite(value) ? c.show(value) : '–';
  card.querySelector('.value span').textContent = c.at ? back + ' s ago' :
      c.kv && isFinite(live.history.at(-1).pages)      ? kvWords() :
                                                         c.unit;
  const width = Math.max(60, values.length);
  let line = '', area = '', open = false, lastX = 0;
  values.forEach((v, i) => {
    const x = width - values.length + i;
    if (!isFinite(v)) return void (open = false);
    const y = (1 - Math.min(1, v / most)) * 46 + 2;
    line += (open ? 'L' : 'M') + x + ' ' + y.toFixed(2);
    area += (open ? '' : (area ? `V48Z` : '') + `M${x} 48`) + `L${x} ${y.toFixed(2)}`;
    open = true;
    lastX = x;
  });
  if (area) area += `L${lastX} 48Z`;
  const x = width - 1 - back;
  fill(
      card.querySelector('.plot'),
      el('svg', {
        viewBox: `0 0 ${width - 1} 50`,
        preserveAspectRatio: 'none',
        role: 'img',
        'aria-label': `${c.name}, second by second`
      },
         el('line', {class: 'ground', x1: 0, x2: width, y1: 48, y2: 48}), el('path', {class: 'area', d: area}),
         el('path', {class: 'line', d: line}),
         c.at !== undefined && el('line', {class: 'reading', x1: x, x2: x, y1: 0, y2: 48})),
      el('small', {class: 'mono'}, c.top ? '' : c.show(most / 1.08)));
}
function kvWords() {
  const s = live.history.at(-1);
  return `${thousands(s.held)} of ${thousands(s.pages)} pages, ${thousands(s.cachedPages)} cached`;
}

/* A bar per bucket, from the first to the last that is not empty. */
function drawHistogram(box, h) {
  const counts =
      h.buckets.map(([le, n], i) => ({le, n: n - (i ? h.buckets[i - 1][1] : 0), low: i ? h.buckets[i - 1][0] : 0}));
  const from = counts.findIndex((c) => c.n > 0);
  if (from < 0) return void fill(box, el('p', {class: 'hint'}, 'Nothing yet.'));
  let to = counts.length - 1;
  while (!counts[to].n) to--;
  const shown =
      counts.slice(Math.max(0, from - 1), Math.min(counts.length, to + 2)).filter((c) => c.n > 0 || c.le !== Infinity);
  const group = Math.ceil(shown.length / histogramRows);
  const rows = [];
  for (let i = 0; i < shown.length; i += group) {
    const part = shown.slice(i, i + group);
    rows.push({le: part.at(-1).le, n: part.reduce((s, c) => s + c.n, 0)});
  }
  const most = Math.max(...rows.map((c) => c.n));
  const stats = [['mean', h.sum / h.count], ['median', quantile(h, null, 0.5)], ['p99', quantile(h, null, 0.99)]];
  fill(
      box,
      el('p', {class: 'hist-facts'},
         stats.map(([n, v]) => el('span', {}, n + ' ', el('b', {class: 'mono'}, seconds(v)))),
         el('span', {}, el('b', {class: 'mono'}, thousands(h.count)), ' measured')),
      rows.map((c) => {
        const bar = el('i', {});
        bar.style.setProperty('--part', (100 * c.n) / most + '%');
        return el(
            'div', {class: 'hist-row'}, el('span', {class: 'mono'}, c.le === Infinity ? 'more' : '≤ ' + seconds(c.le)),
            el('span', {class: 'track'}, bar), el('b', {class: 'mono'}, c.n ? thousands(c.n) : ''));
      }));
}

function drawTotals(s) {
  const finished = new Map();
  for (const [reason, n] of s.finished) finished.set(reason, Math.max(finished.get(reason) || 0, n));
  const list = [
    ...[...finished].map(([reason, n]) => ['ended: ' + reason, thousands(n)]),
    ['refused with 429', s.refused],
    ['prompt tokens', s.prompt],
    ['of them cached', s.cached],
    ['generated tokens', s.generated],
    ['computed tokens', s.computed],
    ['steps', s.steps],
    ['tokens a step', s.steps > 0 ? (s.computed / s.steps).toFixed(1) : NaN],
    ['preemptions', s.preemptions],
    ['drafted', s.drafted],
    ['accepted', s.accepted],
    ['weight version', s.version],
  ].filter(([, v]) => typeof v === 'string' || isFinite(v));
  fill(
      $('totals'),
      list.map(
          ([n, v]) =>
              el('div', {}, el('dt', {}, n), el('dd', {class: 'mono'}, typeof v === 'string' ? v : thousands(v)))));
}
